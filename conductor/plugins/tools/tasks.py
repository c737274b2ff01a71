"""The tools ``add_task``, ``list_tasks`` and ``update_task``: a to-do list stored with the session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, TypeAlias, get_args

import msgspec
from pydantic import Field

from conductor.plugins.tools.stored import change_field, find_item, next_id, no_storage
from conductor.tools import ToolError, tool
from conductor.tools.base import CallContext
from conductor.tools.outcomes import ToolOutcome, succeeded

FIELD = "tasks"
# Bytes of a list, which is one field of the session, and characters of a task.
MAX_BYTES = 32 * 1024
MAX_TITLE_CHARS = 200
MAX_NOTES_CHARS = 2000

Status: TypeAlias = Literal["pending", "in_progress", "completed"]
STATUSES: tuple[Status, ...] = get_args(Status)

_TITLE = Field(min_length=1, max_length=MAX_TITLE_CHARS)


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


@tool(
    description="Add a task to the user's list in this conversation. Answers with its id.",
    needs_session=True,
    risk="safe",
    effect="write",
)
async def add_task(
    context: CallContext,
    title: Annotated[str, _TITLE, Field(description="What is to be done, in one line.")],
    notes: Annotated[
        str | None, Field(max_length=MAX_NOTES_CHARS, description="Details, if there are any.")
    ] = None,
) -> ToolOutcome:
    """Answer with the new ``task`` and ``open``: how many are not completed."""

    def add(tasks: dict[str, Task]) -> Task:
        return _edited(Task(next_id("task", tasks), ""), context, title=title, notes=notes)

    return await _change(context, add)


@tool(
    description="List the tasks of this conversation, with their ids and status.",
    needs_session=True,
    risk="safe",
    effect="read",
)
async def list_tasks(
    context: CallContext,
    status: Annotated[Status | None, Field(description="Only tasks with this status.")] = None,
) -> ToolOutcome:
    """Answer with ``tasks``, oldest first, and ``counts`` of all tasks by status."""
    if context.fields is None:
        raise no_storage("tasks")
    tasks, notes = _read(context.fields.get(FIELD))
    selected = [task for task in tasks.values() if status in (None, task.status)]
    counts = {name: sum(task.status == name for task in tasks.values()) for name in STATUSES}
    data = {"tasks": [task.view for task in selected], "counts": counts}
    return succeeded(data, notes=notes, untrusted=any(task.untrusted for task in selected))


@tool(
    description="Change a task of this conversation: its status, title or notes. "
    "Give its id, and only the fields that change.",
    needs_session=True,
    risk="safe",
    effect="write",
)
async def update_task(
    context: CallContext,
    id: Annotated[str, Field(max_length=64, description="For example: task_3")],
    status: Status | None = None,
    title: Annotated[str | None, _TITLE] = None,
    notes: Annotated[
        str | None,
        Field(max_length=MAX_NOTES_CHARS, description="Replaces the notes; an empty text removes them."),
    ] = None,
) -> ToolOutcome:
    """Answer with the changed ``task`` and ``open``: how many are not completed."""

    def change(tasks: dict[str, Task]) -> Task:
        if status is title is notes is None:
            raise ToolError("Give status, title or notes.", "validation_failed")
        return _edited(find_item(id, "task", tasks), context, status=status, title=title, notes=notes)

    return await _change(context, change)


def _edited(
    task: Task,
    context: CallContext,
    *,
    status: Status | None = None,
    title: str | None = None,
    notes: str | None = None,
) -> Task:
    line = task.title if title is None else " ".join(title.split())
    if not line:
        raise ToolError("The title is blank.", "validation_failed")
    return Task(
        id=task.id,
        title=line,
        status=status or task.status,
        notes=task.notes if notes is None else notes.strip(),
        untrusted=task.untrusted or context.tainted,
    )


async def _change(context: CallContext, change: Callable[[dict[str, Task]], Task]) -> ToolOutcome:
    def update(text: str | None) -> tuple[str, ToolOutcome]:
        tasks, notes = _read(text)
        task = change(tasks)
        tasks[task.id] = task
        data = msgspec.json.encode(list(tasks.values()))
        # The list is written as a whole with each change, and read with each claim.
        if len(data) > MAX_BYTES:
            message = f"The list is full: it has {MAX_BYTES // 1024} KiB of text."
            raise ToolError(message, "validation_failed")
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
