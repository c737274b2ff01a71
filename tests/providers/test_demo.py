"""The demo model: its calls, and its words about their results."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conductor.conversation.phrases import CUT_BEFORE_SPEECH, CUT_SOMEWHERE, HEARD_NOTHING, marked
from conductor.messages import AssistantMessage, Message, Note, ToolCall, ToolResult, UserMessage
from conductor.models.base import Finished, ModelEvent, ModelRequest, TextDelta, ToolDefinition
from conductor.plugins.models.demo import DemoProvider, output_for
from conductor.settings import load_settings
from conductor.tools.base import ToolOutcome, failed, succeeded
from conductor.tools.toolsets import all_tools

MODELS = Path(__file__).parents[2] / "docs" / "models.md"
Run = Callable[[Mapping[str, Any]], ToolOutcome]


def tool(name: str, *properties: str) -> ToolDefinition:
    return ToolDefinition(
        name,
        f"Runs {name}.",
        {"type": "object", "properties": {key: {"type": "string"} for key in properties}},
    )


CLOCK = tool("get_current_time", "timezone")
CALCULATOR = tool("calculator", "expression")
SPAWN = tool("agent.spawn", "prompt", "repository")
SELECT = tool("repositories.select", "prompt", "filter")
DEVICE = (
    SPAWN,
    SELECT,
    tool("agent.status", "id"),
    tool("agent.cancel", "id"),
    tool("agent.followup", "id", "prompt"),
    tool("agent.list", "limit"),
    tool("repositories.list"),
)
TOOLS = (CLOCK, CALCULATOR, *DEVICE)
ASKED = "In which repository shall the agent add a dark mode?"


@pytest.fixture
def rng() -> random.Random:
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)  # noqa: T201 # shown by pytest when the test fails
    return random.Random(seed)


class TerminalChat:
    """A conversation with the demo: the loop of a turn, with tools that are functions."""

    def __init__(self, tools: Sequence[ToolDefinition] = TOOLS, **runs: Run) -> None:
        self.tools = tools
        self.runs = {name.replace("__", "."): run for name, run in runs.items()}
        self.messages: list[Message] = []
        self.rounds: list[list[ToolCall]] = []
        self.model = DemoProvider(0)

    async def hear(self, message: Message | str, tool_choice: Any = "auto") -> str:
        """Give a message, run the calls until the model stops, and return its last words."""
        self.messages.append(UserMessage(message) if isinstance(message, str) else message)
        self.rounds = []
        for _ in range(5):
            events = await collect(
                self.model, ModelRequest("Be brief.", tuple(self.messages), self.tools, tool_choice)
            )
            text = "".join(event.text for event in events if isinstance(event, TextDelta))
            calls = [event for event in events if isinstance(event, ToolCall)]
            self.messages.append(AssistantMessage(text, tuple(calls)))
            assert isinstance(events[-1], Finished)
            assert events[-1].stop == ("tool_use" if calls else "end_turn")
            if not calls:
                return text
            self.rounds.append(calls)
            for call in calls:
                outcome = self.runs[call.name](msgspec.json.decode(call.arguments))
                self.messages.append(ToolResult(call.call_id, outcome.content, not outcome.success))
        raise AssertionError("the model did not come to an end")

    @property
    def calls(self) -> list[tuple[str, Any]]:
        """What was called for the last message: names and arguments."""
        return [(call.name, msgspec.json.decode(call.arguments)) for calls in self.rounds for call in calls]


async def collect(model: DemoProvider, request: ModelRequest) -> list[ModelEvent]:
    async with asyncio.timeout(5):
        return [event async for event in model.stream(request)]


def clock(moment: datetime) -> Run:
    def run(arguments: Mapping[str, Any]) -> ToolOutcome:
        zone = arguments.get("timezone") or "Europe/Madrid"
        return succeeded({"time": moment.isoformat(), "weekday": f"{moment:%A}", "time_zone": zone})

    return run


def result_is(value: Any) -> Run:
    return lambda _: succeeded(value)


def any_moment(rng: random.Random) -> datetime:
    return datetime(
        rng.randrange(2027, 2090), rng.randrange(1, 13), rng.randrange(1, 29), rng.randrange(1, 12),
        rng.randrange(1, 60), tzinfo=timezone(timedelta(hours=rng.randrange(1, 12))),
    )  # fmt: skip


# -- time and sums


async def test_it_tells_the_time_that_the_tool_gave(rng: random.Random) -> None:
    moment = any_moment(rng)
    talk = TerminalChat(get_current_time=clock(moment))
    words = await talk.hear("What time is it?")
    assert talk.calls == [("get_current_time", {})]
    assert words.startswith(f"It is {moment.hour}:{moment:%M} ")
    assert f", {moment:%A}, " in words


async def test_a_city_with_accents_has_a_time_zone() -> None:
    talk = TerminalChat(get_current_time=clock(any_moment(random.Random(1))))
    await talk.hear("What time is it in São Paulo?")
    assert talk.calls == [("get_current_time", {"timezone": "America/Sao_Paulo"})]


async def test_several_places_are_several_calls_in_one_reply(rng: random.Random) -> None:
    moment = any_moment(rng)
    talk = TerminalChat(get_current_time=clock(moment))
    words = await talk.hear("what time is it in Tokyo, sao paulo and in Asia/Ho_Chi_Minh")
    assert [arguments["timezone"] for _, arguments in talk.calls] == [
        "Asia/Tokyo",
        "America/Sao_Paulo",
        "Asia/Ho_Chi_Minh",
    ]
    assert len(talk.rounds) == 1
    assert [place in words for place in ("In Tokyo it is", "In Sao Paulo it is", "In Ho Chi Minh it is")] == [
        True
    ] * 3


async def test_an_unknown_place_is_asked_for_and_not_guessed(rng: random.Random) -> None:
    talk = TerminalChat(get_current_time=clock(any_moment(rng)))
    assert "Xanadu" in await talk.hear("What time is it in Xanadu?")
    assert talk.calls == []


async def test_a_time_without_a_zone_is_in_universal_time() -> None:
    moment = datetime(2031, 4, 2, 17, 5, tzinfo=UTC)
    talk = TerminalChat(get_current_time=result_is({"time": moment.isoformat(), "time_zone": "UTC"}))
    assert await talk.hear("what time is it") == (
        "It is 5:05 in the afternoon in universal time, Wednesday, April 2, 2031."
    )


async def test_a_sum_and_a_time_are_called_for_in_one_reply(rng: random.Random) -> None:
    moment, percent, number = any_moment(rng), rng.randrange(2, 99), rng.randrange(1000, 9000)
    value = f"{percent * number / 100:.15g}"
    talk = TerminalChat(get_current_time=clock(moment), calculator=result_is({"result": value}))
    words = await talk.hear(f"What is {percent}% of {number}, and what time is it in Tokyo?")
    assert [len(calls) for calls in talk.rounds] == [2]
    assert [name for name, _ in talk.calls] == ["calculator", "get_current_time"]
    part = "at night" if moment.hour < 5 else "in the morning"
    date = f"{moment:%A}, {moment:%B} {moment.day}, {moment.year}"
    in_tokyo = f"In Tokyo it is {moment.hour}:{moment:%M} {part}, {date}."
    assert words == f"{percent}% of {number} is {value}. {in_tokyo}"


# -- failures


async def test_one_failure_among_two_says_which(rng: random.Random) -> None:
    talk = TerminalChat(
        calculator=lambda _: failed("internal_error", "The abacus broke"),
        get_current_time=clock(any_moment(rng)),
    )
    words = await talk.hear("what time is it and what is 3 times 3")
    assert words.startswith("It is ")
    assert words.endswith("Calculator did not work: The abacus broke.")


async def test_an_unknown_outcome_is_neither_claimed_nor_denied_nor_repeated() -> None:
    talk = TerminalChat(
        agent__spawn=lambda _: failed("unknown", "No answer came.", reason="tool_result_timeout")
    )
    words = await talk.hear("start an agent to tidy up in kestrel/burrow")
    assert len(talk.calls) == 1
    assert words.startswith("Agent spawn: I don't know whether that happened.")
    assert "did not work" not in words


async def test_a_call_that_was_cut_off_is_an_unknown_outcome() -> None:
    call = ToolCall("c1", "agent.cancel", '{"id":"q-7"}')
    closed = "Interrupted before a result was produced; it may or may not have run."
    messages = (
        UserMessage("cancel agent q-7"),
        AssistantMessage("", (call,)),
        ToolResult("c1", closed, True),
    )
    assert "I don't know whether that happened." in output_for(ModelRequest("", messages, TOOLS)).text


async def test_a_tool_that_is_not_offered_is_not_called() -> None:
    talk = TerminalChat(tools=(CLOCK,))
    assert await talk.hear("what is 17% of 2340") == "The tool calculator is not available here."
    assert await talk.hear("add a task to feed the cat") == "The tool add task is not available here."


async def test_with_tools_switched_off_it_answers_in_words() -> None:
    talk = TerminalChat()
    assert await talk.hear("what time is it", tool_choice="none") == "I may not use any tools just now."


# -- agents


async def test_an_agent_is_started_in_the_named_repository(rng: random.Random) -> None:
    repository, identity = f"o{rng.randrange(10**6)}/r{rng.randrange(10**6)}", f"bc-{rng.randrange(10**6)}"
    talk = TerminalChat(agent__spawn=result_is(msgspec.json.encode({"id": identity}).decode()))
    words = await talk.hear(f"Please start an agent to fix the login and update its tests in {repository}.")
    prompt = {"prompt": "fix the login and update its tests", "repository": repository}
    assert talk.calls == [("agent.spawn", prompt)]
    assert repository in words
    assert identity in words


@pytest.mark.parametrize(
    "answer",
    [
        "acorn/walnut",
        "acorn slash walnut.",
        "It's acorn slash walnut",
        "use the repository acorn/walnut please",
    ],
)
async def test_a_repository_that_was_not_named_is_asked_for_and_understood_next_turn(answer: str) -> None:
    talk = TerminalChat(agent__spawn=result_is({"id": "bc-5"}))
    assert (await talk.hear("Start an agent to add a dark mode")).startswith(ASKED)
    assert talk.calls == []
    await talk.hear(answer)
    [(name, arguments)] = talk.calls
    assert name == "agent.spawn"
    assert arguments["prompt"] == "add a dark mode"
    assert arguments["repository"] == "acorn/walnut"


async def test_the_repository_is_asked_for_again_after_another_answer() -> None:
    talk = TerminalChat(agent__spawn=result_is({"id": "bc-5"}))
    await talk.hear("start an agent to add a dark mode")
    assert (await talk.hear("the blue one")).startswith(ASKED)
    await talk.hear("in acorn/walnut")
    assert [arguments["repository"] for _, arguments in talk.calls] == ["acorn/walnut"]


async def test_a_repository_picked_on_the_screen_starts_the_agent_that_waits() -> None:
    talk = TerminalChat(
        repositories__select=result_is('{"repository":"acorn/hazel"}'), agent__spawn=result_is({"id": "bc-8"})
    )
    await talk.hear("start an agent to add a dark mode")
    words = await talk.hear("let me pick one")
    assert [name for name, _ in talk.calls] == ["repositories.select", "agent.spawn"]
    assert talk.calls[1][1]["repository"] == "acorn/hazel"
    assert words == "I started an agent on acorn/hazel. Its id is bc-8."


async def test_an_agent_whose_repository_was_named_does_not_wait_for_another() -> None:
    talk = TerminalChat(agent__spawn=result_is({"id": "bc-5"}))
    await talk.hear("start an agent to add a dark mode in acorn/walnut", tool_choice="none")
    await talk.hear("acorn/hazel")
    assert talk.calls == []


async def test_a_repository_is_not_used_twice() -> None:
    talk = TerminalChat(agent__spawn=result_is({"id": "bc-5"}))
    await talk.hear("start an agent to add a dark mode")
    await talk.hear("acorn/walnut")
    await talk.hear("acorn/walnut")
    assert talk.calls == []


async def test_the_agent_started_last_is_the_one_that_is_meant(rng: random.Random) -> None:
    identity = f"bc-{rng.randrange(10**9)}"
    talk = TerminalChat(
        agent__spawn=result_is({"id": identity}),
        agent__status=result_is({"id": identity, "status": "RUNNING"}),
        agent__followup=result_is("ok"),
        agent__cancel=result_is("ok"),
    )
    assert (await talk.hear("how is the agent doing?")).startswith("Which agent?")
    await talk.hear("start an agent to tidy up in kestrel/burrow")
    assert await talk.hear("what's the status of my agent?") == f"The agent {identity} is running."
    assert talk.calls == [("agent.status", {"id": identity})]
    await talk.hear("tell the agent to use tabs and no spaces")
    assert talk.calls == [("agent.followup", {"id": identity, "prompt": "use tabs and no spaces"})]
    assert await talk.hear("cancel agent zz-3 please") == "The agent is cancelled."
    assert talk.calls == [("agent.cancel", {"id": "zz-3"})]


async def test_lists_name_a_few_and_count_the_rest(rng: random.Random) -> None:
    count = rng.randrange(7, 40)
    names = [f"owner/r{index}x{rng.randrange(1000)}" for index in range(count)]
    talk = TerminalChat(
        agent__list=result_is(
            '{"agents":[{"id":"a","name":"Login","status":"IN_PROGRESS"},{"name":"Dark"}]}'
        ),
        repositories__list=result_is({"repositories": names}),
    )
    words = await talk.hear("list my repositories and my agents")
    assert f"There are {count} repositories: {names[0]}, {names[1]}" in words
    assert f"and {count - 5} more" in words
    assert names[6] not in words
    assert words.endswith("There are 2 agents: Login, which is in progress and Dark.")


# -- tasks and files


async def test_tasks_and_files_are_handled_when_they_are_offered() -> None:
    tools = (
        tool("add_task", "title"), tool("list_tasks"), tool("update_task", "id", "status"),
        tool("read_file", "path"), tool("create_file", "path", "content"), tool("get_file_tree", "path"),
    )  # fmt: skip
    talk = TerminalChat(
        tools, add_task=result_is({"id": "task_1"}), update_task=result_is({}), get_file_tree=result_is("b/"),
        read_file=result_is({"content": "Feed the heron."}), create_file=result_is(None),
        list_tasks=result_is([{"id": "task_1", "title": "oil the gate", "status": "pending"}]),
    )  # fmt: skip
    assert await talk.hear("add a task to oil the gate") == "I added the task: oil the gate."
    assert talk.calls == [("add_task", {"title": "oil the gate"})]
    assert await talk.hear("list my tasks") == "There is 1 task: oil the gate, which is pending."
    await talk.hear("task 1 is done")
    assert talk.calls == [("update_task", {"id": "task_1", "status": "completed"})]
    assert await talk.hear("read the file notes/pond.txt") == "notes/pond.txt says: Feed the heron."
    await talk.hear("create a file pond.txt saying feed the heron, and the duck")
    assert talk.calls == [("create_file", {"path": "pond.txt", "content": "feed the heron, and the duck"})]
    await talk.hear("list the files in docs")
    assert talk.calls == [("get_file_tree", {"path": "docs"})]


# -- any tool


async def test_any_offered_tool_can_be_called_by_name(rng: random.Random) -> None:
    arguments, answer = {"level": rng.randrange(10**6), "deep": {"a": [1, "}"]}}, rng.randrange(10**6)
    talk = TerminalChat((tool("lamp.dim_slowly"),), **{"lamp__dim_slowly": result_is({"brightness": answer})})
    words = await talk.hear(f"call lamp.dim_slowly with {msgspec.json.encode(arguments).decode()}")
    assert talk.calls == [("lamp.dim_slowly", arguments)]
    assert words == f"Lamp dim slowly answered: brightness is {answer}."
    await talk.hear("call lamp_dim_slowly")
    assert talk.calls == [("lamp.dim_slowly", {})]


@pytest.mark.parametrize("arguments", ["{", "[1]", "three", '{"a":1,}', "{" * 200_000])
async def test_arguments_that_are_no_json_object_are_not_sent(arguments: str) -> None:
    talk = TerminalChat((tool("lamp.dim"),))
    assert "JSON object" in await talk.hear(f"call lamp.dim with {arguments}")
    assert talk.calls == []


# -- words


async def test_say_repeats_the_exact_words(rng: random.Random) -> None:
    words = "  ".join(f"W{rng.randrange(1000)}, and what time is it?" for _ in range(4)) + "\nÄ 2+2"
    assert await TerminalChat().hear(f"Say {words}") == words


async def test_it_counts_and_streams_the_numbers_one_by_one(rng: random.Random) -> None:
    last = rng.randrange(50, 1000)
    events = await collect(DemoProvider(0), ModelRequest("", (UserMessage(f"count to {last}."),), TOOLS))
    deltas = [event.text for event in events if isinstance(event, TextDelta)]
    assert [int(delta.strip(" ,.")) for delta in deltas] == list(range(1, last + 1))


@pytest.mark.parametrize("words", ["count to 1001", "count to 0", "count from 9 to 3", "count to 999999999"])
async def test_it_does_not_count_too_far(words: str) -> None:
    assert await TerminalChat().hear(words) == "I count upwards, and to 1000 at most."


async def test_it_repeats_itself_and_the_user(rng: random.Random) -> None:
    words = f"heron {rng.randrange(10**9)}"
    talk = TerminalChat()
    assert await talk.hear("repeat") == "I have not said anything yet."
    await talk.hear(f"say {words}")
    assert await talk.hear("What did I say?") == f"You said: say {words}"
    await talk.hear(f"say {words}")
    assert await talk.hear("repeat that, please") == words


@pytest.mark.parametrize(
    ("reply", "repeated"),
    [
        (marked("One, two"), "One, two"),
        (f"One, two {CUT_SOMEWHERE}", "One, two"),
        (
            f"One, two {CUT_BEFORE_SPEECH} [Done, though the user may not have heard so: add_task.]",
            "One, two",
        ),
        (HEARD_NOTHING, "Earlier."),
        ("See [The user guide] there.", "See [The user guide] there."),
    ],
)
def test_it_repeats_the_heard_words_without_the_mark_of_a_cut(reply: str, repeated: str) -> None:
    history: list[Message] = [UserMessage("x"), AssistantMessage("Earlier."), UserMessage("x")]
    history += [AssistantMessage(reply), UserMessage("repeat")]
    assert output_for(ModelRequest("", history)).text == repeated


async def test_help_names_its_abilities() -> None:
    assert "work out sums" in await TerminalChat().hear("help")
    words = await TerminalChat(tools=(CLOCK,)).hear("who wrote the Odyssey?")
    assert "demonstration, not an assistant" in words
    assert "tell the time" in words
    assert "sums" not in words


async def test_a_note_is_narrated(rng: random.Random) -> None:
    talk = TerminalChat()
    await talk.hear("say hello")
    news = f"The agent Otter {rng.randrange(10**6)} has finished"
    assert await talk.hear(Note(news)) == f"Here is some news. {news}."


def test_a_note_ahead_of_an_utterance_is_only_its_context() -> None:
    messages = (Note("An agent has finished"), UserMessage("say teal"))
    assert output_for(ModelRequest("", messages, TOOLS)).text == "teal"


# -- as a provider


async def test_it_streams_word_by_word_and_counts_tokens() -> None:
    request = ModelRequest("", (UserMessage("say one two three"),), TOOLS)
    events = await collect(DemoProvider(0), request)
    assert [event.text for event in events[:-1] if isinstance(event, TextDelta)] == ["one", " two", " three"]
    assert isinstance(events[-1], Finished)
    assert events[-1].usage.input_tokens > 10
    assert events[-1].usage.output_tokens > 1


@pytest.mark.parametrize(
    ("error_type", "words"),
    [
        ("permission_denied", "All right, I left it."),
        ("approval_timeout", "I had no clear yes from you, so I left it."),
    ],
)
async def test_a_denied_call_is_not_repeated(error_type: Any, words: str) -> None:
    talk = TerminalChat(
        (tool("create_file", "path", "content"),), create_file=lambda _: failed(error_type, "No.")
    )
    assert await talk.hear("create a file pond.txt saying quack") == words


def test_it_understands_every_phrase_of_the_readme() -> None:
    tools = tuple(spec.definition for spec in all_tools(load_settings(None)))
    section = MODELS.read_text().split("## The demo model")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\".*?) \| (.*) \|$", section, re.M)
    phrases = [phrase for row, _ in rows for phrase in re.findall(r'"([^"]+)"', row)]
    assert len(rows) > 8 and len(phrases) > 20
    for phrase in phrases:
        request = re.sub(r"^…", "what time is it", phrase).replace("…", "see X").replace("TOOL", "list_tasks")
        output = output_for(ModelRequest("", (UserMessage(request.replace("{see X}", "{}")),), tools))
        assert phrase == "help" or not output.text.startswith("I am the demo model"), phrase
    called = {name for _, names in rows for name in re.findall(r"`(\w[\w.]*\w)`", names)}
    assert called <= {tool.name for tool in tools}
