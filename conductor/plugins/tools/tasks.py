"""The tools ``add_task``, ``list_tasks`` and ``update_task``: a to-do list stored with the session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec

from conductor.errors import StoreError, StoreUnavailable
from conductor.plugins.tools.definitions import ToolFailure, argument, definition
from conductor.tools.base import CallContext, SessionFields
from conductor.tools.outcomes import ToolOutcome, succeeded, without_result

FIELD = "tasks"
# Bytes of a list, which is one field of the session, and characters of a task.
MAX_BYTES = 32 * 1024
MAX_TITLE_CHARS = 200
MAX_NOTES_CHARS = 2000

Status: TypeAlias = Literal["pending", "in_progress", "completed"]
STATUSES: tuple[Status, ...] = get_args(Status)

_TITLE: Mapping[str, Any] = {"minLength": 1, "maxLength": MAX_TITLE_CHARS}
_STATUS: Mapping[str, Any] = {"enum": list(STATUSES)}


class Task(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One task. ``untrusted``: third parties may have caused it, or written its text."""

    id: Annotated[str, msgspec.Meta(pattern=r"^task_[1-9][0-9]{0,5}$")]
    title: str
    status: Status = "pending"
    notes: str = ""
    untrusted: bool = False

    @property
    def view(self) -> dict[str, str]:
        """The task as the model reads it."""
        notes = {"notes": self.notes} if self.notes else {}
        return {"id": self.id, "title": self.title, "status": self.status, **notes}


class AddTask:
    """``add_task``."""

    spec = definition(
        "add_task",
        "Add a task to the user's list in this conversation. Answers with its id.",
        {
            "title": argument("string", "What is to be done, in one line.", **_TITLE),
            "notes": argument("string", "Details, if there are any.", maxLength=MAX_NOTES_CHARS),
        },
        required=["title"],
        needs_session=True,
        risk="safe",
        effect="write",
    )

    async def run(self, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Answer with the new ``task`` and ``open``: how many are not completed."""

        def add(tasks: dict[str, Task]) -> Task:
            return _edited(Task(next_id("task", tasks), ""), arguments, context)

        return await _change(context, add)


class ListTasks:
    """``list_tasks``."""

    spec = definition(
        "list_tasks",
        "List the tasks of this conversation, with their ids and status.",
        {"status": argument("string", "Only tasks with this status.", **_STATUS)},
        needs_session=True,
        risk="safe",
        effect="read",
    )

    async def run(self, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Answer with ``tasks``, oldest first, and ``counts`` of all tasks by status."""
        if context.fields is None:
            return no_storage("tasks").outcome
        tasks, notes = _read(context.fields.get(FIELD))
        selected = [task for task in tasks.values() if arguments.get("status") in (None, task.status)]
        counts = {name: sum(task.status == name for task in tasks.values()) for name in STATUSES}
        data = {"tasks": [task.view for task in selected], "counts": counts}
        return succeeded(data, notes=notes, untrusted=any(task.untrusted for task in selected))


class UpdateTask:
    """``update_task``."""

    spec = definition(
        "update_task",
        "Change a task of this conversation: its status, title or notes. "
        "Give its id, and only the fields that change.",
        {
            "id": argument("string", "For example: task_3", maxLength=64),
            "status": argument("string", **_STATUS),
            "title": argument("string", **_TITLE),
            "notes": argument(
                "string", "Replaces the notes; an empty text removes them.", maxLength=MAX_NOTES_CHARS
            ),
        },
        required=["id"],
        needs_session=True,
        risk="safe",
        effect="write",
    )

    async def run(self, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Answer with the changed ``task`` and ``open``: how many are not completed."""

        def change(tasks: dict[str, Task]) -> Task:
            if arguments.keys().isdisjoint(("status", "title", "notes")):
                raise ToolFailure("validation_failed", "Give status, title or notes.")
            return _edited(find_item(arguments["id"], "task", tasks), arguments, context)

        return await _change(context, change)


def _edited(task: Task, arguments: Mapping[str, Any], context: CallContext) -> Task:
    changes = {name: arguments[name] for name in ("status", "title", "notes") if name in arguments}
    if "title" in changes:
        changes["title"] = " ".join(changes["title"].split())
        if not changes["title"]:
            raise ToolFailure("validation_failed", "The title is blank.")
    if "notes" in changes:
        changes["notes"] = changes["notes"].strip()
    return msgspec.structs.replace(task, **changes, untrusted=task.untrusted or context.tainted)


async def _change(context: CallContext, change: Callable[[dict[str, Task]], Task]) -> ToolOutcome:
    def update(text: str | None) -> tuple[str, ToolOutcome]:
        tasks, notes = _read(text)
        task = change(tasks)
        tasks[task.id] = task
        data = msgspec.json.encode(list(tasks.values()))
        # The list is written as a whole with each change, and read with each claim.
        if len(data) > MAX_BYTES:
            message = f"The list is full: it has {MAX_BYTES // 1024} KiB of text."
            raise ToolFailure("validation_failed", message)
        open_tasks = sum(task.status != "completed" for task in tasks.values())
        shown = {"task": task.view, "open": open_tasks}
        return data.decode(), succeeded(shown, notes=notes, untrusted=task.untrusted)

    return await change_field(context.fields, FIELD, "tasks", update)


def _read(text: str | None) -> tuple[dict[str, Task], tuple[str, ...]]:
    # A field that cannot be read is empty, and is reported in a note.
    try:
        tasks = msgspec.json.decode(text, type=tuple[Task, ...]) if text else ()
    except (msgspec.DecodeError, UnicodeEncodeError):
        return {}, ("The earlier list could not be read; this is a new one. Tell the user.",)
    return {task.id: task for task in tasks}, ()


def next_id(kind: str, items: Mapping[str, Any]) -> str:
    """Return the id after the highest one of a field's items, such as ``task_3``."""
    return f"{kind}_{1 + max((int(name.rpartition('_')[2]) for name in items), default=0)}"


def find_item(name: str, kind: str, items: Mapping[str, Any]) -> Any:
    """Return the item of a field with this id. Raises `ToolFailure` with the existing ids."""
    if name not in items:
        ids = ", ".join(list(items)[-10:]) or "none"
        raise ToolFailure("not_found", f"There is no {kind} {name[:64]!r}. The last ids are: {ids}.")
    return items[name]


async def change_field(
    fields: SessionFields | None,
    name: str,
    content: str,
    change: Callable[[str | None], tuple[str, ToolOutcome]],
) -> ToolOutcome:
    """Replace a field by the text that ``change`` returns, and return its outcome.

    A `ToolFailure` of ``change`` becomes the outcome. ``content`` names the field in messages.
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
    except ToolFailure as error:
        return ToolFailure(error.error_type, f"{error} Nothing was changed.").outcome
    except StoreUnavailable:  # it may have been written before the answer was lost
        why = f"The store of the {content} did not answer."
        return without_result("unknown", why, effect="write", reason="store_unavailable")
    except StoreError:
        why = f"The {content} could not be saved."
        return without_result("not_run", why, effect="write", reason="not_saved")
    return outcomes[-1]


def no_storage(content: str) -> ToolFailure:
    """Make the failure of a call in a session that stores nothing."""
    return ToolFailure("io_error", f"This session cannot keep {content}.")
