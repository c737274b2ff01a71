"""The requests of the OpenAI provider at each endpoint, checked by the strict stand-in."""

from __future__ import annotations

import sys
from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pytest

from conductor.messages import AssistantMessage, Message, Note, ToolCall, ToolResult, UserMessage
from conductor.models.base import Kept, ModelRequest, ToolDefinition
from conductor.plugins.models.openai_request import ChatOpaque, chat_body, completions_body
from conductor.plugins.models.openai_responses import responses_body
from conductor.plugins.models.reasoning import CallSlot, Reasoning, ReplyBlock, Words, opaque_of
from conductor.plugins.models.rendering import encode, names_of
from tests.stand_ins.openai_rules import check_body
from tests.unit.models.test_anthropic_request import random_history

SPAWN = ToolDefinition("agent.spawn", "Start an agent.", {"type": "object", "properties": {"task": {}}})
STATUS = ToolDefinition("agent.status", "", {"type": "object", "anyOf": [{}]})
CALL = ToolCall("c1", "agent.spawn", '{"task": "x"}')


def ask(*messages: Message, system: str = "Be brief.", **more: Any) -> ModelRequest:
    return ModelRequest(system, messages or (UserMessage("Hello."),), **more)


def checked(path: str, body: Any) -> Any:
    return check_body(f"/v1{path}", msgspec.json.decode(encode(body)), {})


def chat(request: ModelRequest, *, official: bool = False) -> Any:
    names = names_of(request)
    body = chat_body(request, names, model="m", max_tokens=512, official=official, source="here")
    return checked("/chat/completions", body)


def completions(request: ModelRequest) -> Any:
    return checked("/completions", completions_body(request, model="m", max_tokens=512))


def responses(request: ModelRequest, *, model: str = "m", source: str = "here") -> Any:
    body = responses_body(request, names_of(request), model=model, max_tokens=512, source=source)
    return checked("/responses", body)


def test_a_plain_question() -> None:
    assert chat(ask()) == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello."}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 512,
    }
    assert responses(ask()) == {
        "model": "m",
        "instructions": "Be brief.",
        "input": [{"role": "user", "content": "Hello."}],
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 512,
    }


def test_tools_have_accepted_names_and_schemas_and_raise_the_limit() -> None:
    body = chat(ask(tools=(SPAWN, STATUS)))
    assert body["max_tokens"] == 2048
    assert body["parallel_tool_calls"] is True
    assert [tool["function"] for tool in body["tools"]] == [
        {
            "name": "agent_spawn",
            "description": "Start an agent.",
            "parameters": {"type": "object", "properties": {"task": {}}},
        },
        {"name": "agent_status", "parameters": {"type": "object", "properties": {}}},
    ]
    flat = responses(ask(tools=(SPAWN,)))["tools"]
    assert flat == [{"type": "function", "strict": False, **body["tools"][0]["function"]}]


def test_without_calls_tools_stay_and_are_switched_off() -> None:
    for body in (
        chat(ask(tools=(SPAWN,), tool_choice="none"), official=True),
        responses(ask(tools=(SPAWN,), tool_choice="none")),
    ):
        assert body["tool_choice"] == "none"
        assert len(body["tools"]) == 1
        assert body.get("max_completion_tokens", body.get("max_output_tokens")) == 512


def test_servers_that_ignore_the_choice_are_given_no_tools() -> None:
    body = chat(ask(tools=(SPAWN,), tool_choice="none"))
    assert "tools" not in body and "tool_choice" not in body


def test_no_limit_is_below_the_smallest_that_openai_accepts() -> None:
    names = names_of(ask())
    body = responses_body(ask(), names, model="m", max_tokens=1, source="s")
    assert body["max_output_tokens"] == 16


def test_openai_itself_has_its_own_names() -> None:
    body = chat(ask(tools=(SPAWN,)), official=True)
    assert body["max_completion_tokens"] == 2048
    assert "max_tokens" not in body and "parallel_tool_calls" not in body


def test_calls_and_results_go_back() -> None:
    history = (
        UserMessage("Go."),
        AssistantMessage(text="Yes. ", calls=(CALL,)),
        ToolResult("c1", ""),
        Note("It ended."),
    )
    assert chat(ask(*history))["messages"][1:] == [
        {"role": "user", "content": "Go."},
        {
            "role": "assistant",
            "content": "Yes.",
            "tool_calls": [
                {
                    "type": "function",
                    "id": "c1",
                    "function": {"name": "agent_spawn", "arguments": '{"task": "x"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "(nothing)"},
        {"role": "user", "content": "[It ended.]"},
    ]
    assert responses(ask(*history))["input"] == [
        {"role": "user", "content": "Go."},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
        {"type": "function_call", "call_id": "c1", "name": "agent_spawn", "arguments": '{"task": "x"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "(nothing)"},
        {"role": "user", "content": "[It ended.]"},
    ]


def test_roles_alternate_and_a_person_begins() -> None:
    history = (
        AssistantMessage(text="Welcome."),
        AssistantMessage(text=" "),
        AssistantMessage(text="Back."),
        UserMessage(" "),
        UserMessage("Hello?"),
    )
    assert chat(ask(*history, system=" "))["messages"] == [
        {"role": "user", "content": "[The conversation goes on from here.]"},
        {"role": "assistant", "content": "Welcome.\n\nBack."},
        {"role": "user", "content": "[No words.]\n\nHello?"},
    ]
    assert responses(ask(*history, system=" "))["input"][0]["role"] == "user"
    assert chat(ModelRequest("", ()))["messages"] == responses(ModelRequest("", ()))["input"]


def test_halves_of_surrogate_pairs_are_replaced() -> None:
    tool = ToolDefinition("x", "a\ud800", {"type": "object"})
    history = (UserMessage("b\ud800"), AssistantMessage(text="c\ud800"), UserMessage("d"))
    for body in (chat, responses, completions):
        text = msgspec.json.encode(body(ask(*history, system="e\ud800", tools=(tool,)))).decode()
        assert all(f"{letter}\ufffd" in text for letter in "bce")


def test_texts_that_end_a_reply() -> None:
    assert chat(ask(stop=("\nObservation:",)))["stop"] == ["\nObservation:"]
    assert completions(ask(stop=("X",)))["stop"] == ["X", "\nUser:"]
    assert "stop" not in responses(ask(stop=("X",)))


def test_a_prompt_is_the_conversation_as_text() -> None:
    history = (
        UserMessage("Hello."),
        AssistantMessage(text="Hi.", calls=(CALL,)),
        ToolResult("c1", "Done."),
        AssistantMessage(text="", calls=(CALL,)),
        Note("It ended."),
    )
    body = completions(ask(*history, tools=(SPAWN,)))
    assert body["prompt"] == (
        "Be brief.\n\nUser: Hello.\n\nAssistant: Hi.\n\nResult: Done.\n\nUser: [It ended.]\n\nAssistant:"
    )
    assert "tools" not in body and body["max_tokens"] == 512
    assert completions(ModelRequest("", ()))["prompt"] == "Assistant:"


@pytest.mark.parametrize("model", ["gpt-4o-mini", "gpt-4.1", "chatgpt-4o-latest", "gpt-5-chat-latest"])
def test_models_that_do_not_reason_are_not_asked_for_their_reasoning(model: str) -> None:
    assert "include" not in responses(ask(), model=model)
    assert "include" in responses(ask(), model="gpt-6-luna")


FIRST, SECOND = ({"type": "reasoning", "id": f"r{n}", "encrypted_content": f"e{n}"} for n in (1, 2))
SPAWNED = ToolResult("c1", "1")


def reasoned(source: str = "here") -> AssistantMessage:
    """Make a reply of a thought, words, a thought and a call."""
    blocks: list[ReplyBlock] = [Reasoning(FIRST), Words("Hm."), Reasoning(SECOND), CallSlot("c1")]
    opaque = opaque_of(blocks, lambda: source)
    return AssistantMessage(text="Hm.", calls=(CALL,), opaque=opaque, provider="openai")


def test_reasoning_goes_back_before_its_item() -> None:
    items = responses(ask(UserMessage("Go."), reasoned(), SPAWNED))["input"][1:-1]
    assert [item["type"] for item in items] == ["reasoning", "message", "reasoning", "function_call"]
    assert (items[0], items[2]) == (FIRST, SECOND)


@pytest.mark.parametrize(
    ("reply", "more"),
    [
        (reasoned("elsewhere"), ()),
        (msgspec.structs.replace(reasoned(), provider="anthropic"), ()),
        (msgspec.structs.replace(reasoned(), opaque="[]"), ()),
        (msgspec.structs.replace(reasoned(), opaque="{"), ()),
        (reasoned(), (AssistantMessage(text="Done."), UserMessage("On."))),
    ],
    ids=["another model", "another provider", "no object", "no JSON", "a finished turn"],
)
def test_reasoning_of_anything_else_is_left_out(reply: AssistantMessage, more: tuple[Message, ...]) -> None:
    items = responses(ask(UserMessage("Go."), reply, SPAWNED, *more))["input"]
    assert "reasoning" not in [item.get("type") for item in items]


def test_reasoning_at_the_end_is_left_out() -> None:
    blocks: list[ReplyBlock] = [Reasoning(FIRST), Words("Hm."), Reasoning(SECOND)]
    opaque = opaque_of(blocks, lambda: "here")
    items = responses(
        ask(UserMessage("Go."), AssistantMessage(text="Hm.", calls=(), opaque=opaque, provider="openai"))
    )["input"]
    assert items[1:] == [FIRST, {"type": "message", "role": "assistant", "content": items[2]["content"]}]


def opaque(source: str = "here", extras: tuple[Any, ...] = ({"google": {"thought_signature": "s"}},)) -> str:
    return ChatOpaque(source, {"reasoning_content": "Hm."}, list(extras)).dump()


def test_reasoning_of_chat_goes_back_while_the_turn_runs_and_signatures_always() -> None:
    reply = AssistantMessage(text="", calls=(CALL,), opaque=opaque(), provider="openai")
    running = (UserMessage("Go."), reply, ToolResult("c1", "1"))
    for history, runs in (
        (running, True),
        ((*running, AssistantMessage(text="Done."), UserMessage("On.")), False),
    ):
        message = chat(ask(*history))["messages"][2]
        assert message.get("reasoning_content") == ("Hm." if runs else None)
        assert message["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "s"}}


@pytest.mark.parametrize("text", [opaque("elsewhere"), '{"prefix":"","blocks":[]}', "[]", "{"])
def test_reasoning_of_chat_from_elsewhere_is_left_out(text: str) -> None:
    reply = AssistantMessage(text="", calls=(CALL,), opaque=text, provider="openai")
    message = chat(ask(UserMessage("Go."), reply, ToolResult("c1", "1")))["messages"][2]
    assert "reasoning_content" not in message and "extra_content" not in message["tool_calls"][0]


def bodies(request: ModelRequest) -> tuple[bytes, bytes]:
    names = names_of(request)
    limits: Any = {"model": "m", "max_tokens": 512, "source": "here"}
    body = encode(chat_body(request, names, official=False, **limits))
    return body, encode(responses_body(request, names, **limits))


def test_the_later_requests_of_a_turn_are_as_if_each_were_the_first() -> None:
    seed = 20261128
    sys.stdout.write(f"seed {seed}\n")
    random = Random(seed)
    histories = [random_history(random) for _ in range(50)]
    of_chat = AssistantMessage(text="", calls=(CALL,), opaque=opaque(), provider="openai")
    for reply in (reasoned(), reasoned("elsewhere"), of_chat):
        histories.append([UserMessage("Go."), reply, SPAWNED, Note("News."), AssistantMessage(text="Done.")])
    for history in histories:
        kept: Kept = {}
        for end in range(len(history) + 1):
            fresh = ModelRequest("Be brief.", history[:end], [SPAWN])
            assert bodies(replace(fresh, kept=kept)) == bodies(fresh)
