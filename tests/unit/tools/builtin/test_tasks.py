"""The task tools: a limited list that is stored with the session and replaced if it cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.errors import StoreUnavailable
from conductor.plugins.tools.tasks import FIELD, MAX_BYTES, add_task, list_tasks, update_task
from conductor.tools.base import CallContext
from conductor.tools.outcomes import ToolOutcome
from tests.unit.tools.builtin.conftest import run


class Fields:
    """A session's fields in memory; with ``twice`` each change is tried again, as after a conflict."""

    def __init__(self, text: str | None = None, *, twice: bool = False, fails: bool = False) -> None:
        self.texts = {} if text is None else {FIELD: text}
        self.twice = twice
        self.fails = fails

    def get(self, name: str) -> str | None:
        return self.texts.get(name)

    async def refresh(self) -> None:
        pass

    async def update(self, name: str, change: Callable[[str | None], str]) -> None:
        if self.twice:
            change(self.texts.get(name))
        text = change(self.texts.get(name))
        if self.fails:
            raise StoreUnavailable("down")
        self.texts[name] = text


async def call(tool: Callable[..., Any], fields: Fields | None, **arguments: Any) -> ToolOutcome:
    return await run(tool, arguments, CallContext(session_id="s", call_id="c", fields=fields))


async def add(fields: Fields, title: str = "buy milk", **arguments: Any) -> ToolOutcome:
    return await call(add_task, fields, title=title, **arguments)


async def update(fields: Fields, task: str, **arguments: Any) -> ToolOutcome:
    return await call(update_task, fields, id=task, **arguments)


async def tasks(fields: Fields, **arguments: Any) -> Any:
    return (await call(list_tasks, fields, **arguments)).data["tasks"]


async def test_tasks_are_added_listed_and_changed() -> None:
    fields = Fields(twice=True)
    outcome = await add(fields, "  buy\n milk ", notes=" two litres ")
    first = {"id": "task_1", "title": "buy milk", "status": "pending", "notes": "two litres"}
    assert outcome.data == {"task": first, "open": 1}
    second = {"id": "task_2", "title": "call Ann", "status": "pending"}
    assert (await add(fields, "call Ann")).data == {"task": second, "open": 2}
    assert await tasks(fields) == [first, second]
    assert fields.texts[FIELD].endswith(',{"id":"task_2","title":"call Ann"}]')
    assert (await update(fields, "task_1")).error_type == "validation_failed"
    outcome = await update(fields, "task_1", status="completed", notes="")
    completed = {"id": "task_1", "title": "buy milk", "status": "completed"}
    assert outcome.data == {"task": completed, "open": 1}
    assert (await update(fields, "task_2", title="call Bob")).data["task"]["title"] == "call Bob"
    assert await tasks(fields, status="completed") == [completed]
    assert await tasks(fields, status="in_progress") == []
    listed = await call(list_tasks, fields)
    assert listed.data["counts"] == {"pending": 1, "in_progress": 0, "completed": 1}


async def test_for_an_unknown_id_the_last_ones_are_listed() -> None:
    fields = Fields()
    assert (await update(fields, "task_1", status="completed")).error_message == (
        "There is no task 'task_1'. The last ids are: none. Nothing was changed."
    )
    for _ in range(3):
        await add(fields)
    before = dict(fields.texts)
    outcome = await update(fields, "Task 2", status="completed")
    assert outcome.error_type == "not_found"
    assert "'Task 2'. The last ids are: task_1, task_2, task_3." in (outcome.error_message or "")
    assert fields.texts == before


@pytest.mark.parametrize("title", [" ", "\n\t", "\u2003"])
async def test_a_blank_title_is_refused(title: str) -> None:
    fields = Fields()
    await add(fields)
    before = dict(fields.texts)
    assert (await add(fields, title)).error_message == "The title is blank. Nothing was changed."
    assert (await update(fields, "task_1", title=title)).error_type == "validation_failed"
    assert fields.texts == before


async def test_a_list_with_too_much_text_is_full() -> None:
    fields = Fields()
    while (outcome := await add(fields, "long", notes="é" * 2000)).success:
        assert len(fields.texts[FIELD].encode()) <= MAX_BYTES
    assert outcome.error_message == "The list is full: it has 32 KiB of text. Nothing was changed."
    assert len(await tasks(fields)) == 8
    assert (await add(fields, "short")).success
    assert (await update(fields, "task_1", notes="")).success


CORRUPT = """\
{
{}
[1]
[{"id":"task_1"}]
[{"id":"task_0","title":"t"}]
[{"id":"task_1","title":"t","status":"gone"}]
[{"id":"task_1","title":"t","more":1}]"""


@pytest.mark.parametrize("text", [*CORRUPT.splitlines(), "[" * 100_000, "\ud800"], ids=range(9))
async def test_an_unreadable_list_is_replaced_with_a_note(text: str) -> None:
    fields = Fields(text)
    outcome = await call(list_tasks, fields)
    assert (outcome.data["tasks"], len(outcome.metadata.notes)) == ([], 1)
    assert (await update(fields, "task_1", status="completed")).error_type == "not_found"
    assert fields.texts[FIELD] == text
    outcome = await add(fields)
    assert outcome.data["task"]["id"] == "task_1"
    assert outcome.metadata.notes == (
        "The earlier list could not be read; this is a new one. Tell the user.",
    )
    assert (await call(list_tasks, fields)).metadata.notes == ()


async def test_a_list_that_cannot_be_stored_is_an_outcome() -> None:
    fields = Fields(fails=True)
    outcome = await add(fields)
    assert outcome.error_type == "unknown" and fields.texts == {}
    assert (outcome.error_message or "").startswith("The store of the tasks did not answer.")
    for tool, arguments in ((add_task, {"title": "x"}), (list_tasks, {}), (update_task, {"id": "task_1"})):
        assert (await call(tool, None, **arguments)).error_type == "io_error"


@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=20)), max_size=8), st.text(max_size=40))
async def test_no_text_raises(tasks_to_add: list[tuple[str, str]], field: str) -> None:
    fields = Fields(field)
    expected = []
    for title, notes in tasks_to_add:
        if (await add(fields, title, notes=notes)).success:
            expected.append(" ".join(title.split()))
    assert [task["title"] for task in await tasks(fields)] == expected
    assert msgspec.json.decode(fields.texts[FIELD]) if expected else True
