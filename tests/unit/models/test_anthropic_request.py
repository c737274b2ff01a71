"""Tests of requests to the Messages API: no history makes one that the service refuses."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from random import Random

import msgspec
import pytest

from conductor.messages import AssistantMessage, Message, Note, ToolCall, ToolResult, UserMessage
from conductor.models.base import Kept, ModelRequest, ToolDefinition
from conductor.plugins.models.anthropic_request import body_of, prefix_of, warming_of
from conductor.plugins.models.families import Claude
from conductor.plugins.models.reasoning import CallSlot, Reasoning, ReplyBlock, Words, opaque_of
from conductor.plugins.models.rendering import encode, names_of
from tests.models import JsonObject
from tests.stand_ins.anthropic_cache import PromptCache
from tests.stand_ins.anthropic_rules import check_body
from tests.stand_ins.anthropic_script import redacted_data, signature_of
from tests.unit.models.replies import SCHEMA, SPAWN, STATUS, ask

CACHED = {"type": "ephemeral"}


def rendered(request: ModelRequest, *, max_tokens: int = 512) -> JsonObject:
    """Give the body as the service reads it; it must be one that the service accepts."""
    body = body_of(request, names_of(request), Claude("test-model"), max_tokens)
    decoded = msgspec.json.decode(encode(body))
    return check_body(decoded, {})


def text(words: str) -> JsonObject:
    return {"type": "text", "text": words}


def plain(message: JsonObject) -> list[JsonObject]:
    return [
        {key: value for key, value in block.items() if key != "cache_control"} for block in message["content"]
    ]


def call(call_id: str = "t1", name: str = "agent.spawn", arguments: str = "{}") -> ToolCall:
    return ToolCall(call_id, name, arguments)


def test_neighbours_of_one_role_become_one_message() -> None:
    messages = rendered(ask(UserMessage("One."), Note("An agent is done."), UserMessage("Two.")))["messages"]
    assert len(messages) == 1
    assert plain(messages[0]) == [text("One."), text("[An agent is done.]"), text("Two.")]
    history = (
        UserMessage("Hello."),
        AssistantMessage(text="One."),
        AssistantMessage(text="Two."),
        UserMessage("Yes."),
    )
    messages = rendered(ask(*history))["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert plain(messages[1]) == [text("One."), text("Two.")]


def test_all_results_of_a_reply_come_first_in_the_next_message() -> None:
    request = ask(
        UserMessage("Two agents."),
        AssistantMessage(text="Yes.", calls=(call("t1"), call("t2"))),
        ToolResult("t1", "one"),
        Note("An agent is done."),
        ToolResult("t2", "two", is_error=True),
        UserMessage("And?"),
    )
    messages = rendered(request)["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert plain(messages[2]) == [
        {"type": "tool_result", "tool_use_id": "t1", "content": "one"},
        {"type": "tool_result", "tool_use_id": "t2", "content": "two", "is_error": True},
        text("[An agent is done.]"),
        text("And?"),
    ]


def test_a_call_goes_back_with_its_name_and_arguments() -> None:
    request = ask(
        UserMessage("Go."),
        AssistantMessage(calls=(call(arguments='{"task": "look", "n": [1, null]}'),)),
        ToolResult("t1", "ok"),
    )
    assert rendered(request)["messages"][1]["content"] == [
        {"type": "tool_use", "id": "t1", "name": "agent_spawn", "input": {"task": "look", "n": [1, None]}}
    ]


@pytest.mark.parametrize(
    "arguments", ["", "[1]", '"text"', "null", '{"task":"cut o', "{} {}", '{"a":"\ud800"}']
)
def test_arguments_that_are_no_object_go_back_empty(arguments: str) -> None:
    request = ask(
        UserMessage("Go."), AssistantMessage(calls=(call(arguments=arguments),)), ToolResult("t1", "ok")
    )
    assert rendered(request)["messages"][1]["content"][0]["input"] == {}


def test_without_tools_on_offer_those_of_the_history_are_switched_off() -> None:
    request = ask(UserMessage("Go."), AssistantMessage(calls=(call(),)), ToolResult("t1", "ok"), tools=())
    body = rendered(request)
    assert [tool["name"] for tool in body["tools"]] == ["agent_spawn"]
    assert body["tool_choice"] == {"type": "none"}


def test_switched_off_tools_stay_in_the_request() -> None:
    body = rendered(ask(tool_choice="none"))
    assert [tool["name"] for tool in body["tools"]] == ["agent_spawn"]
    assert body["tool_choice"] == {"type": "none"}
    assert "tool_choice" not in rendered(ask())
    assert "tool_choice" not in rendered(ask(tools=(), tool_choice="none"))


@pytest.mark.parametrize(
    ("configured", "limit"), [(100, 400), (512, 2048), (2000, 4096), (4096, 4096), (8000, 8000)]
)
def test_the_limit_is_raised_when_tools_are_offered(configured: int, limit: int) -> None:
    assert rendered(ask(), max_tokens=configured)["max_tokens"] == limit
    assert rendered(ask(tool_choice="none"), max_tokens=configured)["max_tokens"] == configured
    assert rendered(ask(tools=()), max_tokens=configured)["max_tokens"] == configured


def test_schemas_are_made_such_as_the_service_accepts() -> None:
    odd = {"anyOf": [{"required": ["a"]}], "properties": {"a": True}, "required": ["a"]}
    schema = rendered(ask(tools=(ToolDefinition("odd", " ", odd),)))["tools"][0]["input_schema"]
    assert schema == {"type": "object", "properties": {"a": {}}, "required": ["a"]}


def test_the_cache_ends_at_system_tools_and_the_last_two_of_the_user_s_messages() -> None:
    history = (
        UserMessage("One."),
        AssistantMessage(text="a"),
        UserMessage("Two."),
        AssistantMessage(text="b"),
        UserMessage("Three."),
    )
    body = rendered(ask(*history, tools=(SPAWN, STATUS)))
    assert body["system"] == [{**text("Be brief."), "cache_control": CACHED}]
    assert [tool.get("cache_control") for tool in body["tools"]] == [None, CACHED]
    marks = [message["content"][-1].get("cache_control") for message in body["messages"]]
    assert marks == [None, None, CACHED, None, CACHED]


def facts_of(number: int) -> Note:
    return Note(f"The cart holds {number} items.", passing=True)


def test_the_facts_of_a_turn_stand_behind_the_mark_of_its_words_and_have_one_of_their_own() -> None:
    history: list[Message] = [UserMessage("One."), AssistantMessage(text="a")]
    history += [facts_of(3), UserMessage("Two.")]
    body = rendered(ask(*history, tools=(SPAWN,)))
    facts = {**text("[The cart holds 3 items.]"), "cache_control": CACHED}
    assert body["messages"][-1]["content"] == [{**text("Two."), "cache_control": CACHED}, facts]
    assert "cache_control" not in body["tools"][-1] and "cache_control" in body["system"][0]
    history += [AssistantMessage(calls=(call("t1"),)), ToolResult("t1", "ok")]
    body = rendered(ask(*history, tools=(SPAWN,)))
    assert body["messages"][2]["content"][-1] == facts
    assert msgspec.json.encode(body).count(b"cache_control") == 4, "as many as the service takes"


def test_other_facts_in_the_next_turn_leave_the_cached_prefix() -> None:
    cache = PromptCache()
    history: list[Message] = [UserMessage("One " * 2_000)]
    before = sum(cache.count(rendered(ask(facts_of(3), *history)), 0.0).values())
    history += [AssistantMessage(text="Yes."), facts_of(4), UserMessage("And now?")]
    read = cache.count(rendered(ask(*history)), 0.0)["cache_read_input_tokens"]
    assert before - 20 < read < before


def test_the_cache_holds_the_prefix_of_a_turn_whose_thinking_is_dropped() -> None:
    history: list[Message] = []
    for number in range(5):
        history += [UserMessage(f"{number} {'word ' * 200}"), AssistantMessage(text="Yes.")]
    history.append(UserMessage("Now work."))
    cache = PromptCache()
    before = sum(cache.count(rendered(ask(*history)), 0.0).values())
    for number in range(11):
        history += [AssistantMessage(calls=(call(f"t{number}"),)), ToolResult(f"t{number}", "ok")]
        body = rendered(ask(*history))
        thinking = {"type": "thinking", "thinking": "Hm.", "signature": signature_of("Hm.")}
        body["messages"][11]["content"].insert(0, thinking)
        cache.count(body, 0.0)
    history += [AssistantMessage(text="Done."), UserMessage("And now?")]
    assert cache.count(rendered(ask(*history)), 0.0)["cache_read_input_tokens"] == before > 1000


def test_a_blank_system_prompt_or_description_is_left_out() -> None:
    body = rendered(ask(system=" ", tools=(ToolDefinition("agent.spawn", " ", SCHEMA),)))
    assert "system" not in body and "description" not in body["tools"][0]


def test_halves_of_characters_are_replaced() -> None:
    tool = ToolDefinition(
        "agent.spawn", "d\udfff", {"type": "object", "properties": {"x": {"enum": ["\ud800"]}}}
    )
    body = rendered(ask(UserMessage("a\ud83db"), system="c\udc00", tools=(tool,)))
    assert plain(body["messages"][0]) == [text("a\ufffdb")]
    assert body["tools"][0]["description"] == "d\ufffd"
    assert body["tools"][0]["input_schema"]["properties"] == {"x": {"enum": ["\ufffd"]}}
    assert body["system"][0]["text"] == "c\ufffd"


THOUGHT: list[JsonObject] = [
    {"type": "thinking", "thinking": "Hm.", "signature": signature_of("Hm.")},
    {"type": "redacted_thinking", "data": redacted_data("Hm.")},
]


BEFORE = ask(UserMessage("Go."))


def interleaved(prefix: str | None = None) -> AssistantMessage:
    """Make a reply of a thought, words, a thought and a call; ``prefix`` None: it followed `BEFORE`."""
    blocks: list[ReplyBlock] = [
        Reasoning(THOUGHT[0]),
        Words("Yes. "),
        Reasoning(THOUGHT[1]),
        CallSlot("own"),
    ]
    own = prefix_of(BEFORE, names_of(BEFORE), Claude("test-model"))
    return AssistantMessage(
        text="Yes.", calls=(call(),), opaque=opaque_of(blocks, lambda: prefix or own), provider="anthropic"
    )


def test_the_blocks_of_the_running_turn_go_back_in_order() -> None:
    request = ask(UserMessage("Go."), interleaved(), ToolResult("t1", "ok"))
    body = msgspec.json.decode(encode(body_of(request, names_of(request), Claude("test-model"), 9)))
    blocks = body["messages"][1]["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text", "redacted_thinking", "tool_use"]
    assert [blocks[0], blocks[2]] == THOUGHT
    assert (blocks[3]["id"], body["messages"][2]["content"][0]["tool_use_id"]) == ("own", "own")


@pytest.mark.parametrize(
    ("reply", "more"),
    [
        (msgspec.structs.replace(interleaved(), provider="other"), ()),
        (msgspec.structs.replace(interleaved(), opaque="not json"), ()),
        (msgspec.structs.replace(interleaved(), opaque='[{"type":"text","text":"smuggled"}]'), ()),
        (msgspec.structs.replace(interleaved(), text="Ye"), ()),
        (interleaved("another prefix"), ()),
        (interleaved(), (AssistantMessage(text="Done."), UserMessage("And now?"))),
    ],
    ids=["another provider", "no JSON", "no blocks", "cut words", "another prefix", "a finished turn"],
)
def test_thinking_of_anything_else_is_left_out(reply: AssistantMessage, more: tuple[Message, ...]) -> None:
    body = rendered(ask(UserMessage("Go."), reply, ToolResult("t1", "ok"), *more))
    assert [block["type"] for block in body["messages"][1]["content"]] == ["text", "tool_use"]


def test_a_paused_reply_goes_back_without_the_blank_at_its_end() -> None:
    own = prefix_of(BEFORE, names_of(BEFORE), Claude("test-model"))
    opaque = opaque_of([Reasoning(THOUGHT[0]), Words("Wait. ")], lambda: own)
    request = ask(UserMessage("Go."), AssistantMessage(text="Wait.", opaque=opaque, provider="anthropic"))
    body = msgspec.json.decode(encode(body_of(request, names_of(request), Claude("test-model"), 9)))
    assert [block.get("text") for block in body["messages"][1]["content"]] == [None, "Wait."]


def random_history(random: Random) -> list[Message]:
    """Make a valid history, as `conductor.conversation` keeps it, of odd texts, names, ids and arguments."""
    texts = ["", " ", "\n", "Hello.", "Ends with space ", "\ud800", "日本語", "[note]", "a" * 300]
    names = ["agent.spawn", "agent_spawn", "agent/spawn", "x" * 70, "", "files.read", "ünï.cödé"]
    arguments = ["{}", '{"a": 1}', "", "[]", '{"a": "cut', "nonsense", '{"a": {"b": [1.5, null]}}']
    ids = itertools.count()
    history: list[Message] = []
    for _ in range(random.randrange(1, 6)):
        for _ in range(random.randrange(1, 3)):
            words = random.choice(texts)
            history.append(UserMessage(words) if random.random() < 0.5 else Note(words))
        for _ in range(random.randrange(4)):
            shape = random.choice(["{}", "a.{}", "toolu_{}", "é{}", "{} x"])
            calls = tuple(
                ToolCall(shape.format(next(ids)), random.choice(names), random.choice(arguments))
                for _ in range(random.randrange(4))
            )
            opaque = random.choice([None, msgspec.json.encode(THOUGHT).decode()])
            history.append(
                AssistantMessage(
                    text=random.choice(texts),
                    calls=calls,
                    opaque=opaque,
                    provider=random.choice(["anthropic", "other"]),
                )
            )
            history += [
                ToolResult(call.call_id, random.choice(texts), random.random() < 0.2) for call in calls
            ]
            if random.random() < 0.2:
                history.append(Note(random.choice(texts)))
    return history[random.randrange(2) :] if random.random() < 0.2 else history


def test_no_valid_history_makes_a_request_that_is_refused() -> None:
    seed = 20261121
    sys.stdout.write(f"seed {seed}\n")
    random = Random(seed)
    offered = [
        SPAWN,
        STATUS,
        ToolDefinition("agent_spawn", "", {}),
        ToolDefinition("ünï.cödé", "x", {"oneOf": []}),
    ]
    for _ in range(500):
        tools = tuple(random.sample(offered, random.randrange(len(offered) + 1)))
        choice = random.choice(["auto", "none"])
        system = random.choice(["", " ", "Be brief.", "\udfff"])
        rendered(ask(*random_history(random), system=system, tools=tools, tool_choice=choice))


def assert_grows_as_if_new(history: Sequence[Message]) -> None:
    """Fail if a request of a turn differs from a request without the turn's earlier requests."""
    kept: Kept = {}
    for end, reasoning in itertools.product(range(len(history) + 1), (True, False)):
        fresh = ModelRequest("Be brief.", history[:end], [SPAWN])
        assert bodies(replace(fresh, kept=kept), reasoning) == bodies(fresh, reasoning)


def bodies(request: ModelRequest, reasoning: bool) -> tuple[bytes, str]:
    names, claude = names_of(request), Claude("test-model")
    body = encode(body_of(request, names, claude, 512, reasoning=reasoning))
    return body, prefix_of(request, names, claude, reasoning=reasoning)


def test_the_later_requests_of_a_turn_are_as_if_each_were_the_first() -> None:
    seed = 20261128
    sys.stdout.write(f"seed {seed}\n")
    random = Random(seed)
    for _ in range(50):
        assert_grows_as_if_new(random_history(random))
    for prefix in (None, "another prefix"):
        assert_grows_as_if_new([*two_thoughts(prefix), Note("News.")])


def two_thoughts(prefix: str | None) -> list[Message]:
    """Make a turn of two replies with thinking: the first after ``prefix``, the second after the first."""
    history: list[Message] = [UserMessage("Go."), interleaved(prefix), ToolResult("t1", "ok")]
    own = prefix_of(ask(*history), names_of(ask(*history)), Claude("test-model"))
    opaque = opaque_of([Reasoning(THOUGHT[0]), CallSlot("own2")], partial(str, own))
    return [
        *history,
        AssistantMessage(text="", calls=(call("t2"),), opaque=opaque, provider="anthropic"),
        ToolResult("t2", "ok"),
    ]


def test_thinking_goes_back_after_a_reply_whose_own_is_left_out() -> None:
    request = ask(*two_thoughts("another prefix"))
    body = msgspec.json.decode(encode(body_of(request, names_of(request), Claude("test-model"), 9)))
    first, second = (message["content"] for message in body["messages"] if message["role"] == "assistant")
    assert [block["type"] for block in first] == ["text", "tool_use"]
    assert [block["type"] for block in second] == ["thinking", "tool_use"]


@pytest.mark.parametrize("history", [(), (UserMessage("word " * 1000), AssistantMessage(text="Yes."))])
def test_a_warming_stores_all_that_the_next_turn_sends_before_its_words(history: tuple[Message, ...]) -> None:
    cache, system = PromptCache(), "word " * 1100
    request = ModelRequest(system, history, [SPAWN])
    warming = encode(warming_of(request, names_of(request), Claude("test-model")))
    stored = cache.count(check_body(msgspec.json.decode(warming), {}), 0.0)
    assert stored["cache_creation_input_tokens"] > 1000 and stored["input_tokens"] < 60
    body = rendered(ask(*history, UserMessage("Hello."), system=system))
    assert cache.count(body, 0.0)["cache_read_input_tokens"] == stored["cache_creation_input_tokens"]
