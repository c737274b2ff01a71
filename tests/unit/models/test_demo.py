"""The demo model: its calls, and its words about their results."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.messages import AssistantMessage, Message, Note, ToolCall, ToolResult, UserMessage
from conductor.models.base import Finished, ModelEvent, ModelRequest, TextDelta, ToolDefinition
from conductor.plugins.models.demo import DemoProvider, output_for
from conductor.settings import load_settings
from conductor.tools.declarations import load_catalog
from conductor.tools.outcomes import ToolOutcome, cancelled_outcome, failed, succeeded, timeout_outcome
from conductor.tools.toolsets import all_tools
from tests.cpu import least_cpu_s
from tests.server.wires import WAIT

MODELS = Path(__file__).parents[3] / "docs" / "models.md"
Run = Callable[[Mapping[str, Any]], ToolOutcome]
TEXT = {"type": "string"}


def tool(name: str, description: str = "", /, *optional: str, **required: Any) -> ToolDefinition:
    properties = required | dict.fromkeys(optional, TEXT)
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return ToolDefinition(name, description, schema)


CLOCK = tool("get_current_time", "Get the current date and time; by default the user's.", "timezone")
CALCULATOR = tool("calculator", "Compute an arithmetic expression.", expression=TEXT)
LAMP = tool(
    "lamp.switch",
    "Switch the lamp of a room on or off.",
    room={"type": "string", "enum": ["hall", "office", "living_room"]},
    on={"type": "boolean"},
)
NOTE = tool("note.delete", "Delete a note.", title=TEXT)
FILE = tool("create_file", "Create a file.", path=TEXT, content=TEXT)
TOOLS = (
    CLOCK,
    CALCULATOR,
    LAMP,
    NOTE,
    tool("schedule_task", "Remind the user later.", text=TEXT, in_minutes={"type": "number"}),
    FILE,
)


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
            self.messages.append(AssistantMessage(text=text, calls=tuple(calls)))
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
    async with asyncio.timeout(WAIT):
        return [event async for event in model.stream(request)]


def result_is(value: Any) -> Run:
    return lambda _: succeeded(value)


# -- sentences that call a tool


@pytest.mark.parametrize(
    ("words", "name", "arguments"),
    [
        ("Switch on the lamp in the hall", "lamp.switch", {"room": "hall", "on": True}),
        ("Please turn off the living room light.", "lamp.switch", {"room": "living_room", "on": False}),
        ("turn the hall light off", "lamp.switch", {"room": "hall", "on": False}),
        ("What is 17% of 2,340?", "calculator", {"expression": "17% of 2340"}),
        ("the square root of 144 plus 3", "calculator", {"expression": "sqrt(144) + 3"}),
        ("1,250,000 divided by 4", "calculator", {"expression": "1250000 / 4"}),
        ("(6+2) percent of 50", "calculator", {"expression": "(6+2)% of 50"}),
        ("Remove the note \u201cMilk and honey\u201d, please", "note.delete", {"title": "Milk and honey"}),
        ("What time is it in Sao Paulo?", "get_current_time", {"timezone": "America/Sao_Paulo"}),
        ("what day is it in Asia/Ho_Chi_Minh", "get_current_time", {"timezone": "Asia/Ho_Chi_Minh"}),
        ("remind me in 2 hours to eat", "schedule_task", {"in_minutes": 120, "text": "eat"}),
        (
            "create a file pond.txt saying feed the heron, and the duck",
            "create_file",
            {"path": "pond.txt", "content": "feed the heron, and the duck"},
        ),
    ],
)
async def test_a_sentence_of_the_table_becomes_a_call(
    words: str, name: str, arguments: Mapping[str, Any]
) -> None:
    talk = TerminalChat(TOOLS, **{name.replace(".", "__"): result_is("ok")})
    await talk.hear(words)
    assert talk.calls == [(name, arguments)]


@pytest.mark.parametrize(
    "words",
    [
        "hello",
        "what can you do?",
        "The note is nice",
        "What time is it in Xanadu?",
        "remind me in 1.2.3 hours to eat",
        "3 4",
    ],
)
async def test_other_words_call_nothing_and_get_three_examples(words: str) -> None:
    talk = TerminalChat()
    answer = await talk.hear(words)
    assert talk.calls == []
    assert answer == (
        "I'm the demo model and glad to help: try \u201cswitch on the lamp in the hall\u201d, "
        "\u201cdelete the note Milk\u201d or \u201cwhat is 17% of 2,340\u201d."
    )


ANYBODYS = (
    tool("door.open", "Open a door.", door=TEXT),
    tool("thermostatSet", "Set the temperature.", room=TEXT, degrees={"type": "number"}),
    tool("messages.send", "", to=TEXT, body=TEXT),
    tool("weather.today", "Today's weather in a city.", city=TEXT),
    tool("x7", "List the birds of a pond.", "pond"),
    ToolDefinition("x8", "", {"type": "object"}, title="Water the roses"),
    tool("roll_dice", "Roll some dice.", sides={"anyOf": [{"type": "null"}, {"type": "integer"}]}),
    tool("fan.set", "", speed={"type": "string", "enum": ["low", "very_high"]}, on={"type": "boolean"}),
)


@pytest.mark.parametrize(
    ("words", "name", "arguments"),
    [
        ("Open the front door", "door.open", {"door": "front"}),
        ("please open the door to the shop.", "door.open", {"door": "shop"}),
        ("Set the thermostat in the den to 7.5 degrees", "thermostatSet", {"room": "den", "degrees": 7.5}),
        (
            "Send a message to Anna saying hello, my dear",
            "messages.send",
            {"to": "Anna", "body": "hello, my dear"},
        ),
        ("What is the weather in Rome?", "weather.today", {"city": "Rome"}),
        ("What's the weather in Rome?", "weather.today", {"city": "Rome"}),
        ("What\u2019s the weather in Anna's village?", "weather.today", {"city": "Anna's village"}),
        ("which birds are on the pond Otter", "x7", {"pond": "Otter"}),
        ("water the roses", "x8", {}),
        ("roll the dice with six sides", "roll_dice", {"sides": 6}),
        ("set the fan on very high", "fan.set", {"speed": "very_high", "on": True}),
    ],
)
async def test_a_sentence_with_the_words_of_anybodys_tool_calls_it(
    words: str, name: str, arguments: Mapping[str, Any]
) -> None:
    talk = TerminalChat((*TOOLS, *ANYBODYS), **{name.replace(".", "__"): result_is("ok")})
    await talk.hear(words)
    assert talk.calls == [(name, arguments)]


@pytest.mark.parametrize(
    "words",
    [
        "Did you open the door?",
        "the front door is open",
        "open the door",
        "water the roses tomorrow",
        "roll the dice with 2.5 sides",
    ],
)
async def test_words_that_only_resemble_a_tool_call_nothing(words: str) -> None:
    talk = TerminalChat((*TOOLS, *ANYBODYS))
    assert (await talk.hear(words)).startswith("I'm the demo model")


IOS = tuple(spec.definition for spec in load_catalog(Path("ios")))


@pytest.mark.parametrize(
    ("words", "name", "arguments"),
    [
        ("List my repositories", "repositories.list", {}),
        ("let me choose a repository", "repositories.select", {}),
        (
            "Start an agent to fix the tests in acme/website",
            "agent.spawn",
            {"prompt": "fix the tests", "repository": "acme/website"},
        ),
        (
            "start a coding agent on acme slash website to add a page, and update the map",
            "agent.spawn",
            {"prompt": "add a page, and update the map", "repository": "acme/website"},
        ),
        ("show me my agents", "agent.list", {}),
        ("How is agent bc-12 doing?", "agent.status", {"id": "bc-12"}),
        ("Tell agent bc-12 to add a test", "agent.followup", {"id": "bc-12", "prompt": "add a test"}),
        ("list agents", "agent.list", {}),
        ("how's agent bc-12 doing", "agent.status", {"id": "bc-12"}),
        ("What's the status of agent bc-12?", "agent.status", {"id": "bc-12"}),
        ("stop the agent bc-12", "agent.cancel", {"id": "bc-12"}),
    ],
)
async def test_a_sentence_of_the_shipped_app_calls_its_tool(
    words: str, name: str, arguments: Mapping[str, Any]
) -> None:
    talk = TerminalChat((*TOOLS, *IOS), **{name.replace(".", "__"): result_is("ok")})
    await talk.hear(words)
    assert talk.calls == [(name, arguments)]


TWO = [
    (tool("note.write", "Writes a note.", title=TEXT, body=TEXT), {"title": "Alpha", "body": "Beta"}),
    (tool("light.dim", "Dim a light.", room=TEXT, level={"type": "integer"}), {"room": "Alpha", "level": 2}),
    (tool("pay", "Pay someone.", to=TEXT, amount={"type": "number"}), {"to": "Alpha", "amount": 2}),
    (tool("songs.play", "Play a song by an artist.", song=TEXT, by=TEXT), {"song": "Alpha", "by": "Beta"}),
]


@pytest.mark.parametrize(("declared", "arguments"), TWO)
async def test_a_tool_of_two_arguments_is_proposed_with_words_that_call_it(
    declared: ToolDefinition, arguments: Mapping[str, Any]
) -> None:
    talk = TerminalChat((*TOOLS, declared), **{declared.name.replace(".", "__"): result_is("ok")})
    example = re.findall("\u201c(.*?)\u201d", await talk.hear("hello"))[0]
    await talk.hear(example)
    assert talk.calls == [(declared.name, arguments)]


@pytest.mark.parametrize("tools", [(), TOOLS, ANYBODYS, IOS, ANYBODYS[:1], (*TOOLS, *ANYBODYS)])
async def test_each_example_is_understood_and_none_is_a_tools_name(tools: Sequence[ToolDefinition]) -> None:
    names = [tool.name for tool in tools]
    talk = TerminalChat(tools, **{name.replace(".", "__"): result_is("ok") for name in names})
    answer = await talk.hear("hello")
    examples = re.findall("\u201c(.*?)\u201d", answer)
    assert len(examples) == 3 and answer.count(".") == 1
    assert not [name for name in names if name in answer]
    called = set()
    for example in examples:
        assert not (await talk.hear(example)).startswith("I'm the demo model"), example
        called |= {name for name, _ in talk.calls}
    assert len(called) == min(3, len(tools))


async def test_several_requests_are_called_for_in_one_reply(rng: random.Random) -> None:
    percent, number = rng.randrange(2, 99), rng.randrange(1000, 9000)
    value = f"{percent * number / 100:.15g}"
    moment = {"time": "2031-04-02T17:05:00+09:00", "weekday": "Wednesday", "time_zone": "Asia/Tokyo"}
    talk = TerminalChat(get_current_time=result_is(moment), calculator=result_is({"result": value}))
    words = await talk.hear(f"What is {percent}% of {number}, and what time is it in Tokyo?")
    assert [name for name, _ in talk.calls] == ["calculator", "get_current_time"]
    assert len(talk.rounds) == 1
    assert words == f"{percent}% of {number} is {value}. It is 17:05 on Wednesday in Tokyo."


# -- failures


async def test_one_failure_among_two_says_which() -> None:
    talk = TerminalChat(
        calculator=lambda _: failed("internal_error", "The abacus broke"),
        get_current_time=result_is("noon"),
    )
    words = await talk.hear("what time is it and what is 3 times 3")
    assert words.startswith("Get current time answered: noon. ")
    assert words.endswith("Calculator did not work: The abacus broke.")


@pytest.mark.parametrize("outcome", [timeout_outcome("write", 30.0), cancelled_outcome("partial", None, 1.0)])
async def test_an_unknown_outcome_is_neither_claimed_nor_denied_nor_repeated(outcome: ToolOutcome) -> None:
    talk = TerminalChat(note__delete=lambda _: outcome)
    words = await talk.hear("delete the note Milk")
    assert len(talk.calls) == 1
    assert words == "I don't know whether that happened. It may have, so I am not trying again."


async def test_a_call_that_only_reads_and_did_not_end_in_time_cannot_have_happened() -> None:
    talk = TerminalChat(calculator=lambda _: timeout_outcome("read", 30.0))
    assert await talk.hear("what is 3 times 3") == "Calculator did not answer in time."


async def test_a_tool_that_is_not_offered_is_not_called() -> None:
    talk = TerminalChat(tools=(CLOCK,))
    assert "I'm the demo model" in await talk.hear("what is 17% of 2340")
    assert await talk.hear("call add_task") == "The tool add task is not available here."
    assert talk.calls == []


async def test_with_tools_switched_off_it_answers_in_words() -> None:
    talk = TerminalChat()
    assert await talk.hear("what time is it", tool_choice="none") == "I may not use any tools just now."


# -- results


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "done"),
        ('{"lamp":"switched"}', "lamp is switched"),
        ({"deleted": True, "isLast": False}, "deleted is yes and is last is no"),
        (
            {"tasks": [{"title": "oil", "status": "in_progress"}, {"id": 4}]},
            "tasks is oil and id is 4",
        ),
        (list("abcdefgh"), "a, b, c, d, e and more"),
        ([], "none"),
        ({"a": {"b": [[[1]]], "c": None}}, "a is b is more"),
        ("word " * 100, f"{'word ' * 59}word, and there is more"),
    ],
)
async def test_a_result_is_said_in_words(data: Any, words: str) -> None:
    talk = TerminalChat(lamp__switch=result_is(data))
    assert await talk.hear("switch the hall lamp on") == f"Lamp switch answered: {words}."


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


async def test_it_recalls_the_words_before() -> None:
    talk = TerminalChat()
    assert await talk.hear("what did I say") == "You have not said anything before that."
    await talk.hear("say heron 7")
    assert await talk.hear("What did I say?") == "You said: say heron 7"


@pytest.mark.parametrize("words", ["count to 1001", "count to 0", "count to 999999999"])
async def test_it_does_not_count_too_far(words: str) -> None:
    assert await TerminalChat().hear(words) == "I count upwards, and to 1000 at most."


async def test_a_note_is_narrated(rng: random.Random) -> None:
    talk = TerminalChat()
    await talk.hear("say hello")
    news = f"The agent Otter {rng.randrange(10**6)} has finished"
    assert await talk.hear(Note(news)) == f"Here is some news. {news}."


# -- as a provider


@pytest.mark.parametrize(
    ("error_type", "words"),
    [
        ("permission_denied", "All right, I left it."),
        ("approval_timeout", "I had no clear yes from you, so I left it."),
    ],
)
async def test_a_denied_call_is_not_repeated(error_type: Any, words: str) -> None:
    talk = TerminalChat(create_file=lambda _: failed(error_type, "No."))
    assert await talk.hear("create a file pond.txt saying quack") == words


def test_it_understands_every_phrase_of_the_documentation() -> None:
    tools = (LAMP, NOTE, *IOS, *(spec.definition for spec in all_tools(load_settings(None))))
    section = MODELS.read_text().split("## The demo model")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\".*?) \| `(.*)` \|$", section, re.M)
    assert len(rows) > 5
    for phrases, name in rows:
        for phrase in re.findall(r'"([^"]+)"', phrases):
            output = output_for(ModelRequest("", (UserMessage(phrase),), tools))
            assert [called for called, _ in output.calls] == [name], phrase


@given(st.text(max_size=200))
def test_any_utterance_gets_some_words_or_a_call(text: str) -> None:
    reply = output_for(ModelRequest("", (UserMessage(text),), TOOLS))
    assert reply.text or reply.calls


@given(
    st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=9)
)
def test_any_result_gets_words(data: Any) -> None:
    call = ToolCall("c", "lamp.dim", "{}")
    messages = (
        UserMessage("x"),
        AssistantMessage(text="", calls=(call,)),
        ToolResult("c", succeeded(data).content),
    )
    assert output_for(ModelRequest("", messages, TOOLS)).text.startswith("Lamp dim answered: ")


@pytest.mark.parametrize("piece", ["and ", "a/", "what ", "note ", "call ", "1 + ", "((", ". ", "in a "])
def test_a_huge_transcript_is_answered_in_bounded_time(piece: str) -> None:
    request = ModelRequest("", (UserMessage(piece * (60_000 // len(piece))),), TOOLS)
    assert least_cpu_s(lambda: output_for(request), 2) < 2
