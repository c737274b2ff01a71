"""The tools ``add_task``, ``list_tasks`` and ``update_task``: a to-do list stored with the session."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec

from conductor.errors import StoreError
from conductor.plugins.tools.definitions import argument, definition
from conductor.tools.base import CallContext, ErrorType, SessionFields, ToolOutcome, failed, succeeded

FIELD = "tasks"
# Tasks of a list, bytes of the list, which is one field of the session, and characters of a task.
MAX_TASKS = 200
MAX_BYTES = 32 * 1024
MAX_TITLE_CHARS = 200
MAX_NOTES_CHARS = 2000

Status: TypeAlias = Literal["pending", "in_progress", "completed"]
STATUSES: tuple[Status, ...] = get_args(Status)

_TITLE: Mapping[str, Any] = {"minLength": 1, "maxLength": MAX_TITLE_CHARS}
_NOTES: Mapping[str, Any] = {"maxLength": MAX_NOTES_CHARS}
_STATUS: Mapping[str, Any] = {"enum": list(STATUSES)}
_UNREADABLE = "The earlier list could not be read; this is a new one. Tell the user."


class Task(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One task."""

    id: Annotated[str, msgspec.Meta(pattern=r"^task_[1-9][0-9]{0,5}$")]
    title: str
    status: Status = "pending"
    notes: str = ""

    @property
    def view(self) -> dict[str, str]:
        """The task as the model reads it."""
        notes = {"notes": self.notes} if self.notes else {}
        return {"id": self.id, "title": self.title, "status": self.status, **notes}


Tasks: TypeAlias = tuple[Task, ...]


class TaskError(Exception):
    """A change that cannot be made; the message is for the model."""

    def __init__(self, error_type: ErrorType, message: str) -> None:
        super().__init__(message)
        self.error_type: ErrorType = error_type


class AddTask:
    """``add_task``."""

    spec = definition(
        "add_task",
        "Add a task to the user's list in this conversation. Answers with its id.",
        {
            "title": argument("string", "What is to be done, in one line.", **_TITLE),
            "notes": argument("string", "Details, if there are any.", **_NOTES),
        },
        required=["title"],
        needs_session=True,
        risk="safe",
        effect="write",
    )

    async def run(self, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Answer with the new ``task`` and ``open``: how many are not completed."""

        def change(tasks: Tasks) -> tuple[Tasks, Task]:
            if len(tasks) >= MAX_TASKS:
                raise TaskError("validation_failed", f"The list is full: it has {MAX_TASKS} tasks.")
            number = 1 + max((int(task.id.removeprefix("task_")) for task in tasks), default=0)
            task = Task(
                f"task_{number}", _title(arguments["title"]), notes=arguments.get("notes", "").strip()
            )
            return (*tasks, task), task

        return await _change(context, change)


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
            return no_storage("tasks")
        tasks, notes = _read(context.fields.get(FIELD))
        status = arguments.get("status")
        return succeeded(
            {
                "tasks": [task.view for task in tasks if status in (None, task.status)],
                "counts": {name: sum(task.status == name for task in tasks) for name in STATUSES},
            },
            notes=notes,
        )


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
        changes = {name: arguments[name] for name in ("status", "title", "notes") if name in arguments}
        if not changes:
            return failed("validation_failed", "There is nothing to change: give status, title or notes.")

        def change(tasks: Tasks) -> tuple[Tasks, Task]:
            for index, task in enumerate(tasks):
                if task.id == arguments["id"]:
                    if "title" in changes:
                        changes["title"] = _title(changes["title"])
                    if "notes" in changes:
                        changes["notes"] = changes["notes"].strip()
                    task = msgspec.structs.replace(task, **changes)
                    return (*tasks[:index], task, *tasks[index + 1 :]), task
            raise TaskError("not_found", _unknown(arguments["id"], tasks))

        return await _change(context, change)


async def _change(context: CallContext, change: Callable[[Tasks], tuple[Tasks, Task]]) -> ToolOutcome:
    def update(text: str | None) -> tuple[str, ToolOutcome]:
        tasks, notes = _read(text)
        tasks, task = change(tasks)
        data = msgspec.json.encode(tasks)
        # The list is written as a whole with each change, and read with each claim.
        if len(data) > MAX_BYTES:
            raise TaskError("validation_failed", f"The list is full: it has {MAX_BYTES // 1024} KiB of text.")
        open_tasks = sum(task.status != "completed" for task in tasks)
        return data.decode(), succeeded({"task": task.view, "open": open_tasks}, notes=notes)

    return await change_field(context.fields, FIELD, "tasks", update)


async def change_field(
    fields: SessionFields | None,
    name: str,
    content: str,
    change: Callable[[str | None], tuple[str, ToolOutcome]],
) -> ToolOutcome:
    """Replace a field by the text that ``change`` returns, and return its outcome.

    A `TaskError` of ``change`` becomes the outcome. ``content`` names the field in messages.
    """
    if fields is None:
        return no_storage(content)
    outcome: ToolOutcome | None = None

    def update(text: str | None) -> str:
        nonlocal outcome
        text, outcome = change(text)
        return text

    try:
        # Read and written in one step: calls of a round may run at the same time.
        await fields.update(name, update)
    except TaskError as error:
        return failed(error.error_type, f"{error} Nothing was changed.")
    except StoreError:
        return failed("io_error", f"The {content} could not be saved.")
    assert outcome is not None  # the store has called `update`, or raised
    return outcome


def no_storage(content: str) -> ToolOutcome:
    """Make the outcome of a call in a session that stores nothing."""
    return failed("io_error", f"This session cannot keep {content}. Nothing was changed.")


def _read(text: str | None) -> tuple[Tasks, tuple[str, ...]]:
    # A field that cannot be read counts as empty, and is reported in a note.
    if not text:
        return (), ()
    try:
        tasks = msgspec.json.decode(text, type=Tasks)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return (), (_UNREADABLE,)
    if len({task.id for task in tasks}) < len(tasks):
        return (), (_UNREADABLE,)
    return tasks, ()


def _title(title: str) -> str:
    line = " ".join(title.split())
    if not line:
        raise TaskError("validation_failed", "The title is blank.")
    return line


def _unknown(task_id: str, tasks: Tasks) -> str:
    task_id, ids = task_id[:64], [task.id for task in tasks]
    if not ids:
        return f"There is no task {task_id!r}: the list is empty."
    near = difflib.get_close_matches(task_id, ids, 3, cutoff=0.5) or ids[:3]
    return f"There is no task {task_id!r}. Did you mean {' or '.join(near)}? There are {len(ids)} tasks."
