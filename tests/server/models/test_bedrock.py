"""Tests of Bedrock's provider; the contract and the conversations of all providers run over it elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import aclosing
from random import Random
from typing import Any
from unittest.mock import patch

import httpx2
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from botocore.session import Session

from conductor.errors import ModelError, SettingsError
from conductor.messages import AssistantMessage, ToolCall, ToolResult, UserMessage
from conductor.models.base import Finished, ModelEvent, ModelRequest, TextDelta, ToolDefinition, Usage
from conductor.models.profiles import ModelProfile
from conductor.plugins.models.anthropic_request import prefix_of
from conductor.plugins.models.bedrock import BedrockProvider, Signer, from_profile
from conductor.plugins.models.bedrock_stream import ConverseDecoder, converse_body
from conductor.plugins.models.families import Claude
from conductor.plugins.models.rendering import encode, names_of
from conductor.settings import Settings
from tests.conversation.test_history import random_history
from tests.models import Reply
from tests.stand_ins.bedrock_service import BedrockService, check, frame, pieces

CLAUDE = "eu.anthropic.claude-haiku-5-5"
LLAMA = "meta.llama4-scout-17b-instruct-v1:0"
NOVA = "us.amazon.nova-pro-v1:0"
# A profile of the operator's own, whose name does not say which model it is.
ARN = "arn:aws:bedrock:eu-west-1:1:application-inference-profile/abc"
SPAWN = ToolDefinition("agent.spawn", "Start an agent.", {"type": "object", "properties": {"task": {}}})
MARK = {"cachePoint": {"type": "default"}}


def ask(*messages: Any, **fields: Any) -> ModelRequest:
    return ModelRequest("Be brief.", messages or [UserMessage("Hello.")], **fields)


def body_of(request: ModelRequest, model: str = LLAMA) -> Any:
    body = converse_body(request, names_of(request), Claude(model, provider="bedrock"), 512)
    check(body, model)
    return body


def decoded(stream: bytes, size: int | None = None, prefix: Callable[[], str] = str) -> list[ModelEvent]:
    decoder = ConverseDecoder(names_of(ask(tools=(SPAWN,))), prefix)
    events: list[ModelEvent] = []
    for at in range(0, len(stream), size or len(stream)):
        events += decoder.feed(stream[at : at + (size or len(stream))])
    return events if decoder.finished else [*events, *decoder.end()]


def stream_of(reply: Reply) -> bytes:
    return b"".join(piece.data for piece in pieces(reply, "r1", {"read": 20, "written": 5, "cached": 3}))


# -- requests


def test_a_plain_request() -> None:
    assert body_of(ask()) == {
        "system": [{"text": "Be brief."}],
        "messages": [{"role": "user", "content": [{"text": "Hello."}]}],
        "inferenceConfig": {"maxTokens": 512},
    }


def test_calls_and_results_go_back_with_their_tools() -> None:
    history = [
        UserMessage("Go."),
        AssistantMessage(text="Now.", calls=(ToolCall("c1", "agent.spawn", '{"task":"x"}'),)),
        ToolResult("c1", "No.", is_error=True),
    ]
    body = body_of(ask(*history, tools=(SPAWN,), stop=("END",)), NOVA)
    use = {"toolUseId": "c1", "name": "agent_spawn", "input": {"task": "x"}}
    result = {"toolUseId": "c1", "content": [{"text": "No."}], "status": "error"}
    assert body["messages"][1:] == [
        {"role": "assistant", "content": [{"text": "Now."}, {"toolUse": use}]},
        {"role": "user", "content": [{"toolResult": result}]},
    ]
    assert body["inferenceConfig"] == {"maxTokens": 2048, "stopSequences": ["END"]}
    (tool,) = body["toolConfig"]["tools"]
    assert (tool["toolSpec"]["name"], tool["toolSpec"]["description"]) == ("agent_spawn", "Start an agent.")
    # The tool of a former call is defined though it is gone.
    assert body_of(ask(*history))["toolConfig"]["tools"][0]["toolSpec"]["name"] == "agent_spawn"


def test_forbidden_calls_are_a_sentence_in_the_prompt() -> None:
    body = body_of(ask(tools=(SPAWN,), tool_choice="none"))
    assert body["toolConfig"] and "without calling" in body["system"][-1]["text"]


def test_models_with_a_prompt_cache_get_its_marks() -> None:
    body = body_of(ask(tools=(SPAWN,)), CLAUDE)
    assert body["system"][-1] == body["toolConfig"]["tools"][-1] == MARK
    assert body["messages"][0]["content"] == [{"text": "Hello."}, MARK]
    assert MARK not in body_of(ask(tools=(SPAWN,)), NOVA)["toolConfig"]["tools"]


def test_models_that_want_words_apart_from_calls_get_them_so() -> None:
    history = [
        UserMessage("Go."),
        AssistantMessage(text="Now.", calls=(ToolCall("c1", "agent.spawn", "{}"),)),
        ToolResult("c1", "No.", is_error=True),
        UserMessage("And?"),
    ]
    messages = body_of(ask(*history, tools=(SPAWN,)), LLAMA)["messages"]
    assert [(message["role"], [*message["content"][0]]) for message in messages] == [
        ("user", ["text"]),
        ("assistant", ["text"]),
        ("user", ["text"]),
        ("assistant", ["toolUse"]),
        ("user", ["toolResult"]),
        ("assistant", ["text"]),
        ("user", ["text"]),
    ]
    assert "status" not in messages[4]["content"][0]["toolResult"]


@pytest.mark.parametrize("model", [CLAUDE, NOVA, LLAMA, ARN])
def test_botocore_accepts_the_request_of_any_history(model: str) -> None:
    rng = Random(5)
    for _ in range(100):
        tools = rng.choice(((), (SPAWN,)))
        body_of(ask(*random_history(rng), tools=tools, tool_choice=rng.choice(("auto", "none"))), model)


# -- streams


def test_a_thought_in_the_text_is_not_spoken() -> None:
    events = decoded(stream_of(Reply(text="<thinking> Hm. </thinking>\n\nHello.")))
    assert joined(events) == [TextDelta("Hello."), Finished("end_turn", Usage(20, 5, 3))]


def joined(events: list[ModelEvent]) -> list[ModelEvent]:
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    return [
        *([TextDelta(text)] if text else []),
        *(event for event in events if not isinstance(event, TextDelta)),
    ]


def test_signed_reasoning_goes_back_and_is_not_spoken() -> None:
    events = decoded(stream_of(Reply(text="Yes.", thinking="Let me think.")), prefix=_prefix)
    last = events[-1]
    assert joined(events)[0] == TextDelta("Yes.") and isinstance(last, Finished) and last.opaque
    reply = AssistantMessage(text="Yes.", opaque=last.opaque, provider="bedrock")
    reasoning = {"reasoningContent": {"reasoningText": {"text": "Let me think.", "signature": "cjE="}}}
    assert _sent_back(reply, CLAUDE) == [reasoning, {"text": "Yes."}]
    assert _sent_back(reply, LLAMA) == [{"text": "Yes."}], "it is bound to another model"
    foreign = AssistantMessage(text="Yes.", opaque=last.opaque, provider="anthropic")
    assert _sent_back(foreign, CLAUDE) == [{"text": "Yes."}]


def test_redacted_reasoning_goes_back_as_it_came() -> None:
    thought = {"contentBlockIndex": 0, "delta": {"reasoningContent": {"redactedContent": "c2VjcmV0"}}}
    words = {"contentBlockIndex": 1, "delta": {"text": "Yes."}}
    stream = frame("contentBlockDelta", thought) + frame("contentBlockDelta", words) + END
    *_, last = decoded(stream, prefix=_prefix)
    assert isinstance(last, Finished)
    reply = AssistantMessage(text="Yes.", opaque=last.opaque, provider="bedrock")
    assert _sent_back(reply, CLAUDE)[0] == {"reasoningContent": {"redactedContent": "c2VjcmV0"}}


def _prefix() -> str:
    request = ask(UserMessage("Really?"))
    return prefix_of(request, names_of(request), Claude(CLAUDE, provider="bedrock"))


def _sent_back(reply: AssistantMessage, model: str) -> Any:
    return body_of(ask(UserMessage("Really?"), reply), model)["messages"][1]["content"]


END = frame("messageStop", {"stopReason": "end_turn"}) + frame("metadata", {})


def test_reasoning_that_is_not_signed_is_not_sent_back() -> None:
    stream = frame(
        "contentBlockDelta", {"contentBlockIndex": 0, "delta": {"reasoningContent": {"text": "Hm."}}}
    )
    stream += frame("messageStop", {"stopReason": "end_turn"}) + frame("metadata", {})
    (last,) = decoded(stream)
    assert isinstance(last, Finished) and last.opaque is None


START = frame(
    "contentBlockStart", {"contentBlockIndex": 0, "start": {"toolUse": {"toolUseId": "c", "name": "n"}}}
)


@pytest.mark.parametrize("stop", ["malformed_tool_use", "malformed_model_output", "tool_use"])
def test_a_call_that_is_not_whole_is_malformed(stop: str) -> None:
    stream = START + frame("messageStop", {"stopReason": stop}) + frame("metadata", {})
    with pytest.raises(ModelError) as raised:
        decoded(stream)
    assert raised.value.reason == "malformed"


@pytest.mark.parametrize(
    ("stop", "meaning"),
    [
        ("end_turn", "end_turn"),
        ("stop_sequence", "end_turn"),
        ("tool_use", "tool_use"),
        ("max_tokens", "max_tokens"),
        ("content_filtered", "refusal"),
        ("guardrail_intervened", "refusal"),
        ("model_context_window_exceeded", "context_window"),
        ("something_new", "end_turn"),
    ],
)
def test_stop_reasons(stop: str, meaning: Any) -> None:
    stream = frame("messageStop", {"stopReason": stop}) + frame("metadata", {})
    assert decoded(stream) == [Finished(meaning)]


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (frame("throttlingException", {"message": "slow"}, message_type="exception"), "rate_limited"),
        (frame("modelStreamErrorException", {"message": "x"}, message_type="exception"), "overloaded"),
        (
            frame("validationException", {"message": "Input is too long for it."}, message_type="exception"),
            "context_too_long",
        ),
        (frame("validationException", {"message": "x"}, message_type="exception"), "protocol"),
        (b"<html>" + bytes(30), "undecodable"),
        (START[:-1] + b"x", "undecodable"),
        (frame("messageStart", {"role": "assistant"}), "connection"),
    ],
)
def test_failures_in_a_stream(stream: bytes, reason: str) -> None:
    with pytest.raises(ModelError) as raised:
        decoded(stream)
    assert raised.value.reason == reason


# -- the provider


async def test_a_request_is_signed_for_the_address_that_it_goes_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    async with BedrockService() as service:
        provider = BedrockProvider(
            None,
            "arn:aws:bedrock:eu-west-1::x/y",
            512,
            "eu-west-1",
            base_url=service.base_url,
            trust_env=False,
        )
        await provider.start()
        async with aclosing(provider.stream(ask())) as events:
            assert isinstance([event async for event in events][-1], Finished)
        await provider.aclose()
        headers = service.headers[0]
        assert (
            "Credential=AKIDEXAMPLE/" in headers["authorization"]
            and headers["x-amz-security-token"] == "token"
        )
        assert "/eu-west-1/bedrock/aws4_request" in headers["authorization"]
        assert not service.refused
        # The service signs the received request and compares.
        url = f"{service.base_url}{service.paths[0]}"
        assert url.endswith("/model/arn%3Aaws%3Abedrock%3Aeu-west-1%3A%3Ax%2Fy/converse-stream")
        signed = ("content-type", "host", "x-amz-date", "x-amz-security-token")
        request = AWSRequest(
            "POST", url, {name: headers[name] for name in signed}, encode(service.requests[0])
        )
        request.context["timestamp"] = headers["x-amz-date"]
        signer = SigV4Auth(Credentials("AKIDEXAMPLE", "secret", "token"), "bedrock", "eu-west-1")
        text = signer.string_to_sign(request, signer.canonical_request(request))
        assert headers["authorization"].endswith(f"Signature={signer.signature(text, request)}")


async def test_without_credentials_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    provider = BedrockProvider(None, CLAUDE, 512, "eu-west-1", base_url="http://127.0.0.1:9", trust_env=False)
    with pytest.raises(ModelError, match="no AWS credentials") as raised:
        async with aclosing(provider.stream(ask())) as events:
            await anext(events)
    assert raised.value.reason == "authentication"
    await provider.aclose()


async def test_a_role_that_may_not_be_assumed_is_an_authentication_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: Session) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "secret"}}, "AssumeRole")

    monkeypatch.setattr(Session, "get_credentials", refuse)
    with pytest.raises(ModelError, match="could not be loaded") as raised:
        await anext(Signer("eu-west-1").async_auth_flow(httpx2.Request("POST", "http://127.0.0.1:9")))
    assert raised.value.reason == "authentication" and "secret" not in str(raised.value)


def test_the_key_that_aws_tools_read_is_for_amazons_address_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "bedrock-key")
    fields: dict[str, Any] = {
        "name": "default",
        "provider": "bedrock",
        "model": CLAUDE,
        "region": "eu-west-1",
    }
    with patch("conductor.plugins.models.bedrock.BedrockProvider") as constructor:
        from_profile(ModelProfile(**fields), Settings())
        from_profile(ModelProfile(**fields, base_url="http://127.0.0.1:9"), Settings())
    assert [call.args[0] for call in constructor.call_args_list] == ["bedrock-key", None]


def test_a_missing_setting_or_extra_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SettingsError, match="BEDROCK_MODEL is not set"):
        from_profile(ModelProfile(name="default", provider="bedrock"), Settings())
    with pytest.raises(SettingsError, match="AWS_REGION is not set, nor the region of a profile in"):
        from_profile(ModelProfile(name="default", provider="bedrock", model=CLAUDE), Settings())
    monkeypatch.setitem(sys.modules, "botocore", None)
    fields: Any = {"name": "default", "provider": "bedrock", "model": CLAUDE, "region": "eu-west-1"}
    with pytest.raises(SettingsError, match=r"needs the extra bedrock: pip install"):
        from_profile(ModelProfile(**fields), Settings())
