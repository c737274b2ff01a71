"""Histories: the service takes any, also when they are cut between turns."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest

from conductor.conversation.history import (
    HistoryBudget,
    cut_point,
    estimate_tokens,
    history_of,
    request_of,
    shortened,
)
from conductor.conversation.phrases import app_facts
from conductor.conversation.records import ContextAdded, TurnEnded, TurnStarted
from conductor.conversation.state import AppFact, Conversation
from conductor.messages import AssistantMessage, Message, Note, ToolCall, ToolResult, UserMessage
from conductor.models.base import ModelRequest, ToolDefinition, Usage
from conductor.plugins.models.anthropic_request import body_of
from conductor.plugins.models.families import Claude
from conductor.plugins.models.rendering import encode, names_of
from conductor.tools.outcomes import truncate
from tests.conversation.build import device, finished, fold, replied
from tests.session.helpers import faults
from tests.stand_ins.anthropic_rules import check_body

TOOLS = (ToolDefinition("device.do", "Do.", {"type": "object"}),)
TEXTS = ("", " ", "\n", "hi", "Well. ", "x" * 300, "é ✓", "[The user interrupted here.]")
ARGUMENTS = ("", "{}", '{"x":1}', '{"x":', "[1]", "null")


def random_history(rng: random.Random) -> list[Message]:
    """Make a history as a log has it: an input first, and the results of a message right behind its calls."""
    messages: list[Message] = [UserMessage(rng.choice(TEXTS))]
    calls = 0
    for _ in range(rng.randint(0, 8)):
        kind, text = rng.choice(("user", "note", "text", "calls", "calls")), rng.choice(TEXTS)
        if kind == "user":
            messages.append(UserMessage(text))
        elif kind == "note":
            messages.append(Note(text))
        else:
            numbers = range(calls, calls + (rng.randint(1, 3) if kind == "calls" else 0))
            calls += len(numbers)
            tool_calls = tuple(ToolCall(f"c{n}", "device.do", rng.choice(ARGUMENTS)) for n in numbers)
            messages.append(AssistantMessage(text=text, calls=tool_calls))
            messages += [ToolResult(f"c{n}", rng.choice(TEXTS), rng.random() < 0.3) for n in numbers]
    return messages


def complaint(messages: Sequence[Message]) -> str | None:
    """Send it to the strict stand-in for the service."""
    if not messages or isinstance(messages[-1], AssistantMessage):
        messages = [*messages, UserMessage("And?")]
    request = ModelRequest("Be brief.", messages, TOOLS)
    try:
        body = body_of(request, names_of(request), Claude("m"), 100)
        check_body(msgspec.json.decode(encode(body)), {})
    except Exception as error:
        return str(error)
    return None


@pytest.mark.parametrize("seed", range(2))
def test_any_history_is_accepted_also_after_a_cut(seed: int) -> None:
    rng = random.Random(seed)
    for number in range(500):
        history = random_history(rng)
        tail = history[cut_point(history, rng.randint(1, 4), rng.randint(1, 400)) :]
        for messages in (history, tail):
            assert faults(messages) == [], f"seed {seed}, history {number}: {messages}"
            assert complaint(messages) is None, f"seed {seed}, history {number}: {messages}"


def test_the_checker_finds_faults() -> None:
    call = AssistantMessage(calls=(ToolCall("c1", "device.do", "{}"),))
    broken_ones: list[list[Message]] = [
        [AssistantMessage(text="hi")],
        [UserMessage("a"), call],
        [UserMessage("a"), call, UserMessage("b"), ToolResult("c1", "x")],
        [UserMessage("a"), ToolResult("c1", "x")],
        [UserMessage("a"), call, ToolResult("c1", "x"), ToolResult("c1", "x")],
    ]
    assert all(faults(broken) for broken in broken_ones)


# -- sizes

CALLS = (ToolCall("c1", "device.do", '{"x":1}'), ToolCall("c2", "device.do", "{}"))
SIZES: list[tuple[str, Message, int]] = [
    ("an empty message", UserMessage(""), 4),
    ("a message", UserMessage("x" * 35), 14),
    ("a note", Note("x" * 35), 14),
    ("a reply", AssistantMessage(text="x" * 35), 14),
    (
        "a reply with reasoning, which no later turn sends",
        AssistantMessage(text="x" * 35, opaque="x" * 350),
        14,
    ),
    (
        "a reply with a call: 35 characters and 20 for its frame",
        AssistantMessage(text="x" * 19, calls=CALLS[:1]),
        19,
    ),
    ("a reply with two calls", AssistantMessage(text="x" * 19, calls=CALLS), 28),
    ("a result", ToolResult("c1", "x" * 35), 14),
]


@pytest.mark.parametrize(("message", "tokens"), [row[1:] for row in SIZES], ids=[row[0] for row in SIZES])
def test_the_tokens_of_a_message_are_estimated(message: Message, tokens: int) -> None:
    assert estimate_tokens(message) == tokens


# -- cutting

SAYS, REPLIES, TOLD = (
    UserMessage("x" * 56),
    AssistantMessage(text="x" * 56),
    Note("x" * 56),
)  # of 20 tokens each
LARGE = UserMessage("x" * 410)  # of 121 tokens
TURN: list[Message] = [SAYS, REPLIES]
CUTS: list[tuple[str, list[Message], int, int, int]] = [
    ("nothing", [], 4, 1_000, 0),
    ("no turn", [REPLIES, REPLIES], 1, 1, 0),
    ("as many turns and tokens as may be", 4 * TURN, 4, 160, 0),
    ("a turn too many: half of them stay", 5 * TURN, 4, 1_000, 6),
    ("a token too many: half of them stay", 4 * TURN, 4, 159, 6),
    ("a token too many for both halves", 4 * TURN, 9, 159, 6),
    ("too many turns, which are short", 5 * TURN, 4, 200, 6),
    ("too many turns, and the budget holds two", 5 * TURN, 4, 80, 8),
    ("too many tokens, but few turns", [LARGE, *3 * TURN], 4, 240, 1),
    ("one turn, however large", TURN, 1, 1, 0),
    ("two turns of which one stays, however large", 2 * TURN, 1, 1, 2),
    ("too many turns, and as many tokens as may be", [*3 * TURN, LARGE, SAYS], 4, 261, 6),
    ("a reply before the first turn", [REPLIES, *4 * TURN], 4, 180, 0),
    ("a reply before the only turn", [REPLIES, *TURN], 1, 1, 0),
    ("a note at the end", [*2 * TURN, TOLD], 2, 1_000, 4),
    ("a note and the message that it belongs to", [*TURN, *TURN, TOLD, SAYS, REPLIES], 2, 1_000, 4),
    ("a note without a message", [*TURN, *TURN, TOLD, REPLIES], 2, 1_000, 4),
    ("a message after a message", [*TURN, SAYS, SAYS, REPLIES], 2, 1_000, 3),
]


@pytest.mark.parametrize(
    ("messages", "max_turns", "max_tokens", "cut"), [row[1:] for row in CUTS], ids=[row[0] for row in CUTS]
)
def test_whole_turns_are_dropped_from_the_front(
    messages: list[Message], max_turns: int, max_tokens: int, cut: int
) -> None:
    assert cut_point(messages, max_turns, max_tokens) == cut


def turns_of(messages: Sequence[Message]) -> list[int]:
    """Give the places where turns start: at a user's message or note that follows no other one."""
    starts = []
    for index, message in enumerate(messages):
        opens = isinstance(message, UserMessage | Note)
        if opens and (index == 0 or not isinstance(messages[index - 1], UserMessage | Note)):
            starts.append(index)
    return starts


def whole_turns(rng: random.Random, *, notes: bool) -> list[Message]:
    """Make a valid history; with ``notes`` some turns begin with more than one message."""
    messages: list[Message] = []
    for turn in range(rng.randint(0, 12)):
        if notes and rng.random() < 0.4:
            messages.append(Note("n" * rng.randint(0, 200)))
        messages.append(UserMessage("u" * rng.randint(1, 400)))
        if rng.random() < 0.5:
            tool_calls = tuple(ToolCall(f"c{turn}.{n}", "device.do", "{}") for n in range(rng.randint(1, 3)))
            messages.append(AssistantMessage(text="", calls=tool_calls))
            messages += [ToolResult(call.call_id, "r" * rng.randint(0, 900)) for call in tool_calls]
        messages.append(AssistantMessage(text="a" * rng.randint(1, 400)))
    return messages


def check_cut(messages: list[Message], max_turns: int, max_tokens: int) -> None:
    starts = turns_of(messages)
    total = sum(map(estimate_tokens, messages))
    cut = cut_point(messages, max_turns, max_tokens)
    if len(starts) <= max_turns and total <= max_tokens:
        assert cut == 0, "cut without need"
        return
    assert cut == 0 or cut in starts, f"cut at {cut} of {starts}"
    tail = messages[cut:]
    assert faults(tail) == []
    if starts:
        assert cut <= starts[-1], "the last turn is gone"
    turns = len(turns_of(tail))
    tokens = sum(map(estimate_tokens, tail))
    if turns <= 1:
        return
    if len(starts) > max_turns:
        assert turns <= max(1, max_turns // 2)
    assert turns <= max_turns
    assert tokens <= (max_tokens // 2 if total > max_tokens else max_tokens)
    if cut:
        before = messages[starts[starts.index(cut) - 1] :]
        too_long = len(turns_of(before)) > (max_turns // 2 if len(starts) > max_turns else max_turns)
        too_big = sum(map(estimate_tokens, before)) > (max_tokens // 2 if total > max_tokens else max_tokens)
        assert too_long or too_big, "more was cut than had to be"


@pytest.mark.parametrize("seed", range(2))
def test_a_history_is_cut_at_a_turn_to_half_of_the_exceeded_budget(seed: int) -> None:
    rng = random.Random(seed)
    for number in range(500):
        messages = whole_turns(rng, notes=False)
        max_turns, max_tokens = rng.randint(1, 10), rng.randint(1, 3000)
        try:
            check_cut(messages, max_turns, max_tokens)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, history {number}: {error}") from error


def test_a_note_is_not_cut_from_its_message() -> None:
    """A turn is one or more user's messages or notes, and the messages after them."""
    rng = random.Random(1)
    for _ in range(500):
        check_cut(whole_turns(rng, notes=True), rng.randint(1, 10), rng.randint(1, 3000))


def test_reasoning_counts_only_while_its_turn_runs() -> None:
    thought = AssistantMessage(text="Well.", opaque="x" * 35_000)
    history: list[Message] = [UserMessage("a"), thought, UserMessage("b"), thought, UserMessage("c")]
    assert cut_point(history, 10, 1_000) == 0
    budget = HistoryBudget(8_000)
    budget.learn(ModelRequest("", history[:2]), Usage(input_tokens=10_000))
    assert budget.tokens == 8_000
    budget.learn(ModelRequest("", history[:3]), Usage(input_tokens=10_000))
    assert budget.tokens == 1_000


def test_a_budget_follows_the_services_count() -> None:
    budget = HistoryBudget(8_000)
    request = ModelRequest("", [UserMessage("long words " * 1_000)])
    estimated = estimate_tokens(request.messages[0])
    budget.learn(request, Usage(input_tokens=estimated, cache_read_tokens=estimated))
    assert budget.tokens == 4_000
    budget.learn(request, Usage(input_tokens=100 * estimated))
    assert budget.tokens == 1_000, "no service counts a hundred tokens for a word"
    budget.learn(request, Usage(input_tokens=501))
    assert budget.tokens == 8_000, "one that counts less than there is changes nothing"
    budget.learn(ModelRequest("", [UserMessage("Hi")]), Usage(input_tokens=500))
    assert budget.tokens == 8_000, "a short request, most of which is the service's own"
    budget.learn(request, Usage())
    assert budget.tokens == 8_000


def test_everything_that_a_service_counts_is_in_the_estimate() -> None:
    messages: list[Message] = [
        UserMessage("x" * 3_500),
        AssistantMessage(text="", calls=CALLS[1:], opaque="x" * 41),
        ToolResult("c2", ""),
        AssistantMessage(text=""),
    ]
    assert size_of(messages) == 1_004 + 12 + 4 + 4
    budget = HistoryBudget(8_000)
    # The system prompt, a tool and the reasoning of the running turn have 35 + 29 + 41 characters: 30 tokens.
    budget.learn(ModelRequest("s" * 35, messages, TOOLS), Usage(input_tokens=2 * 1_054))
    assert budget.tokens == 4_000


# -- requests that were too long


def long_history(turns: int) -> list[Message]:
    """Make turns of 1,000 tokens each."""
    return [UserMessage("word " * 699) for _ in range(turns)]


def size_of(messages: Sequence[Message]) -> int:
    return sum(map(estimate_tokens, messages))


def accepted(budget: HistoryBudget, messages: Sequence[Message], profile: str | None = None) -> None:
    budget.learn(ModelRequest("", messages), Usage(), profile)


def test_after_a_refusal_requests_are_shorter_for_ten_minutes_and_the_budget_is_the_same() -> None:
    budget, history = HistoryBudget(60_000), long_history(20)
    assert budget.begin(history, 0, now=0) == 0
    budget.refuse(size_of(history), None, now=0)
    begin = budget.begin(history, 0, now=1)
    assert begin == 15, "half of the limit, which is half of the size"
    assert budget.begin(history[4:], 4, now=2) == 11, "the same beginning, behind a dropped part"
    assert budget.begin([*history, *long_history(4)], 0, now=3) == begin
    assert budget.begin([*history, *long_history(8)], 0, now=4) > begin
    assert budget.begin(history, 0, now=600_000) == 0
    assert budget.tokens == 60_000


def test_requests_never_become_shorter_than_an_accepted_one() -> None:
    budget, history = HistoryBudget(60_000), long_history(20)
    accepted(budget, history[:19])
    budget.refuse(size_of(history), None, now=0)
    assert budget.begin(history[:19], 0, now=1) == 0
    accepted(budget, history)
    budget = HistoryBudget(60_000)
    accepted(budget, history)
    budget.refuse(size_of(history), None, now=0)
    assert budget.begin(long_history(30), 0, now=1) == 0, "the service had taken as much before"


def test_of_accepted_requests_the_longest_counts() -> None:
    budget, history = HistoryBudget(60_000), long_history(20)
    accepted(budget, history[:19])
    accepted(budget, history[:1])
    budget.refuse(size_of(history), None, now=0)
    assert budget.begin(history[:19], 0, now=1) == 0


def test_each_refusal_finds_its_own_beginning() -> None:
    budget, history = HistoryBudget(60_000), long_history(20)
    budget.refuse(size_of(history), None, now=0)
    assert budget.begin(history, 0, now=1) == 15
    assert budget.begin(history[18:], 18, now=2) == 0, "what it left out is dropped by now"
    assert budget.begin(history, 0, now=600_000) == 0
    accepted(budget, history[:15])
    budget.refuse(size_of(history), None, now=700_000)
    assert budget.begin(history, 0, now=700_001) == 13


def test_what_one_model_accepts_says_nothing_of_another() -> None:
    budget, history = HistoryBudget(60_000), long_history(20)
    accepted(budget, history, "cloud")
    budget.refuse(size_of(history), "home", now=0)
    assert budget.begin(history, 0, now=1) > 0


def test_a_short_history_is_sent_whole_whatever_a_service_says() -> None:
    budget = HistoryBudget(60_000)
    budget.refuse(500, None, now=0)
    assert budget.begin(50 * TURN, 0, now=1) == 0, "2,000 tokens"
    assert budget.begin([*50 * TURN, Note("")], 0, now=1) == 52, "2,004 tokens"


COUNTED_TWICE = HistoryBudget(4_000, 8_192)
COUNTED_TWICE.learn(ModelRequest("", [UserMessage("x" * 3_486)]), Usage(input_tokens=2_000))
ROOMS: list[tuple[str, HistoryBudget, int, int, int]] = [
    ("the window is unknown: half", HistoryBudget(4_000), 0, 9_000, 4_500),
    ("the window without a reply", HistoryBudget(4_000, 8_192), 0, 9_000, 8_192 - 1_024),
    ("the window without a system prompt of 100 tokens", HistoryBudget(4_000, 8_192), 350, 9_000, 7_068),
    ("the window of a service that counts twice as many", COUNTED_TWICE, 350, 9_000, 3_484),
    ("messages that fit by the estimate: half", HistoryBudget(4_000, 8_192), 0, 7_168, 3_584),
    ("a window that the system prompt fills: half", HistoryBudget(4_000, 8_192), 30_000, 9_000, 4_500),
]


@pytest.mark.parametrize(
    ("budget", "system", "size", "room"), [row[1:] for row in ROOMS], ids=[row[0] for row in ROOMS]
)
def test_the_room_for_messages_that_were_too_many(
    budget: HistoryBudget, system: int, size: int, room: int
) -> None:
    assert budget.room("s" * system, (), size) == room


def test_the_room_for_messages_is_without_the_tools() -> None:
    assert HistoryBudget(4_000, 8_192).room("s" * 6, TOOLS, 9_000) == 8_192 - 1_024 - 10


def results(*sizes: int) -> list[Message]:
    return [UserMessage(""), *(ToolResult(f"c{size}", "x" * size) for size in sizes)]


def cut_text(size: int, limit: int) -> str:
    return truncate("x" * size, limit)


def calling(*arguments: str) -> AssistantMessage:
    return AssistantMessage(text="", calls=tuple(ToolCall("c", "device.do", text) for text in arguments))


TOO_LONG = msgspec.json.encode({"arguments too long to repeat": cut_text(201, 100)}).decode()
SHORTENED: list[tuple[str, list[Message], int, list[Message]]] = [
    ("nothing", [], 0, []),
    ("results that fit", results(1_000, 4_000), 1_439, results(1_000, 4_000)),
    (
        "the largest share what the small ones leave",
        results(9_000, 1_000, 4_000),
        2_014,
        [
            UserMessage(""),
            ToolResult("c9000", cut_text(9_000, 3_000)),
            ToolResult("c1000", "x" * 1_000),
            ToolResult("c4000", cut_text(4_000, 3_000)),
        ],
    ),
    (
        "200 characters stay of each",
        [UserMessage(""), AssistantMessage(text="Well."), *results(200, 201)[1:]],
        0,
        [
            UserMessage(""),
            AssistantMessage(text="Well."),
            *results(200)[1:],
            ToolResult("c201", cut_text(201, 200)),
        ],
    ),
    (
        "arguments, of which half stays: as JSON they may double",
        [UserMessage(""), calling("x" * 200, "x" * 201)],
        0,
        [
            UserMessage(""),
            calling("x" * 200, TOO_LONG),
        ],
    ),
    ("earlier turns", [*results(9_000), *results(200)], 0, [*results(9_000), *results(200)]),
]


@pytest.mark.parametrize(
    ("messages", "max_tokens", "fitting"), [row[1:] for row in SHORTENED], ids=[row[0] for row in SHORTENED]
)
def test_long_results_and_arguments_of_the_running_turn_are_shortened(
    messages: list[Message], max_tokens: int, fitting: list[Message]
) -> None:
    assert shortened(messages, max_tokens) == fitting


def test_the_largest_results_and_arguments_of_the_running_turn_are_shortened() -> None:
    small, large = ToolResult("c1", '{"a":1}'), ToolResult("c2", "x" * 20_000)
    call = AssistantMessage(
        text="Well.",
        calls=(ToolCall("c1", "device.do", "{}"), ToolCall("c2", "device.do", f'{{"x":"{"y" * 30_000}"}}')),
    )
    before: list[Message] = [UserMessage("a"), call, small, large, UserMessage("b")]
    messages = [*before, call, small, large]
    fitting = shortened(messages, size_of(before) + 4_000)
    assert size_of(fitting) <= size_of(before) + 4_000
    assert fitting[:5] == before and fitting[6] is small
    *_, cut_call, _, cut_result = fitting
    assert isinstance(cut_call, AssistantMessage) and isinstance(cut_result, ToolResult)
    assert "[shortened: " in cut_result.content and len(cut_result.content) > 6_000
    assert cut_call.calls[0] == call.calls[0] and "[shortened: " in cut_call.calls[1].arguments
    assert msgspec.json.decode(cut_call.calls[1].arguments)
    assert complaint(fitting[4:]) is None
    assert shortened(messages, size_of(messages)) == messages
    assert shortened(before, 10) == before, "only the running turn"


# -- the facts of the app

GO, YES = UserMessage("go"), AssistantMessage(text="Yes.")
TRANSCRIPT = TurnStarted(cause="transcript", limit_ms=9, text="go")
OVER = fold(TRANSCRIPT, replied(text="Yes."), TurnEnded(reason="answered"))
WITH_FACT = fold(ContextAdded("", AppFact(text="Rain.")), state=OVER)
IN_TURN = fold(TRANSCRIPT, state=WITH_FACT)
IN_ROUND = fold(replied(device(), text="Wait."), finished("c1"), state=IN_TURN)
RAIN = Note(app_facts([AppFact(text="Rain.")]), passing=True)
REQUESTS: list[tuple[str, Conversation, int, list[Message]]] = [
    ("no fact", fold(TRANSCRIPT, state=OVER), 0, [GO, YES, GO]),
    ("a fact, before the words", IN_TURN, 0, [GO, YES, RAIN, GO]),
    (
        "a fact that was told while the turn ran",
        fold(ContextAdded("", AppFact(text="Sun.")), state=IN_TURN),
        0,
        [GO, YES, RAIN, GO],
    ),
    ("a fact, where the history is left out", IN_TURN, 2, [RAIN, GO]),
    ("a fact, after a round of calls", IN_ROUND, 0, [GO, YES, RAIN, *IN_ROUND.log[2:]]),
]


@pytest.mark.parametrize(
    ("state", "skipped", "messages"), [row[1:] for row in REQUESTS], ids=[row[0] for row in REQUESTS]
)
def test_a_request_has_the_facts_of_its_turn_and_the_history_has_not(
    state: Conversation, skipped: int, messages: list[Message]
) -> None:
    assert request_of(state, skipped) == messages
    assert RAIN not in history_of(state)
