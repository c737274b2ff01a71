"""Tools: their definitions, where they run, and the executor that every call passes.

A package or a file of the operator offers Python functions by `tool`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from conductor.tools.outcomes import Effect, ErrorType, Risk

MARK = "__conductor_tool__"
"""The attribute of a function that `tool` marks."""

F = TypeVar("F", bound=Callable[..., Any])


class ToolError(Exception):
    """Raised by a tool: the model reads its text. For other exceptions it reads only that the tool failed."""

    def __init__(self, message: str, error_type: ErrorType = "tool_error") -> None:
        super().__init__(message)
        self.error_type: ErrorType = error_type


@overload
def tool(function: F, /) -> F: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    risk: Risk = "medium",
    effect: Effect = "write",
    timeout_s: float | None = None,
    title: str | None = None,
    spoken: str | None = None,
    open_world: bool = False,
    untrusted: bool = False,
    needs_session: bool = False,
    sensitive: Callable[[Mapping[str, Any]], str | None] | None = None,
    preview: Callable[[Mapping[str, Any]], Awaitable[str]] | None = None,
) -> Callable[[F], F]: ...


def tool(function: F | None = None, /, *, name: str | None = None, **options: Any) -> F | Callable[[F], F]:
    """Offer a function to the model, as ``@tool`` or with options, which are fields of `ToolSpec`.

    ``name`` defaults to the function's, ``description`` to the docstring. The parameters' types are the
    schema: any type of pydantic, with ``Annotated[int, Field(ge=1, description="…")]`` for constraints; a
    parameter that is ``| None = None`` may be left out. The server passes a parameter of the type
    `CallContext`. The result is a `ToolOutcome`, JSON, or a value that pydantic can encode: models,
    dataclasses, dates. A function that is not ``async`` runs in a thread, which continues after the time
    limit. An interruption cancels a call that only reads.
    """

    def mark(marked: F) -> F:
        setattr(marked, MARK, {"name": name or marked.__name__, **options})
        return marked

    return mark if function is None else mark(function)
