"""The items, each with an id, that tools keep in a stored field of a session or its person."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from conductor.errors import StoreError, StoreUnavailable
from conductor.tools import ToolError
from conductor.tools.base import SessionFields
from conductor.tools.outcomes import ToolOutcome, without_result


def next_id(kind: str, items: Mapping[str, Any]) -> str:
    """Return the id after the highest one of a field's items, such as ``task_3``."""
    return f"{kind}_{1 + max((int(name.rpartition('_')[2]) for name in items), default=0)}"


def find_item(name: str, kind: str, items: Mapping[str, Any]) -> Any:
    """Return the item of a field with this id. Raises `ToolError` with the existing ids."""
    if name not in items:
        ids = ", ".join(list(items)[-10:]) or "none"
        raise ToolError(f"There is no {kind} {name[:64]!r}. The last ids are: {ids}.", "not_found")
    return items[name]


async def change_field(
    fields: SessionFields | None,
    name: str,
    content: str,
    change: Callable[[str | None], tuple[str, ToolOutcome]],
) -> ToolOutcome:
    """Replace a field by the text that ``change`` returns, and return its outcome.

    ``content`` names the field in messages. Raises the `ToolError` of ``change``, and one without a store.
    """
    outcomes: list[ToolOutcome] = []

    def update(text: str | None) -> str:
        text, outcome = change(text)
        outcomes.append(outcome)
        return text

    try:
        if fields is None:
            raise no_storage(content)
        # Read and written in one step: calls of a round may run at the same time.
        await fields.update(name, update)
    except ToolError as error:
        raise ToolError(f"{error} Nothing was changed.", error.error_type) from None
    except StoreUnavailable:  # it may have been written before the answer was lost
        why = f"The store of the {content} did not answer."
        return without_result("unknown", why, effect="write", reason="store_unavailable")
    except StoreError:
        why = f"The {content} could not be saved."
        return without_result("not_run", why, effect="write", reason="not_saved")
    return outcomes[-1]


def no_storage(content: str) -> ToolError:
    """Make the failure of a call in a session that stores nothing."""
    return ToolError(f"This session cannot keep {content}.", "io_error")
