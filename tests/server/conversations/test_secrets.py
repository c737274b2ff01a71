"""Secrets in results, arguments and decisions reach neither the model nor the app nor the log."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.dialogues import (
    LIMIT_MS,
    LOOK,
    ask_aloud,
    ask_deciding,
    begin,
    call,
    extended,
    fails_with,
    last_text,
    results_of,
)
from tests.models import AnthropicService, Reply
from tests.serving import configured

KEY = "correct-horse-battery-staple"
TOKEN = "the-phone-of-anna-0451"
ADMIN = "operators-only-please-7734"
OWN = (KEY, TOKEN, ADMIN)
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
PEM_LINE = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"
FOREIGN = (
    "sk-ant-api03-AbCdEfGhIjKlMnOpQrStUvWxYz0123456789-AbCdEfGh",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "AKIAIOSFODNN7EXAMPLE",
    JWT,
    PEM_LINE,
    "hunter2-hunter2",
)
PEM = f"-----BEGIN PRIVATE KEY-----\n{PEM_LINE}\n-----END PRIVATE KEY-----"
LEAK = {
    "note": f"the key is {KEY}, the token {TOKEN}; {ADMIN} is the operator's",
    "key": FOREIGN[0],
    "git": f"https://x:{FOREIGN[1]}@example.com/r.git",
    "aws": FOREIGN[2],
    "session": f"Authorization: Bearer {JWT}",
    "pem": PEM,
    "password": FOREIGN[5],
    "encoded": base64.b64encode(KEY.encode()).decode(),
}
NEVER = (*OWN, *FOREIGN, LEAK["encoded"])


def leaked(text: str) -> list[str]:
    return [secret for secret in NEVER if secret in text]


SAYS = {
    "in its result": lambda a: "\n".join(f"{name}={value}" for name, value in LEAK.items()),
    "in JSON": lambda a: json.dumps(LEAK),
    "in JSON in a string in JSON": lambda a: json.dumps({"body": json.dumps({"inner": json.dumps(LEAK)})}),
    "in its error": fails_with(json.dumps(LEAK)),
    "behind a mebibyte's beginning": lambda a: "x" * 16_200 + json.dumps(LEAK) + "y" * 500_000,
}


@pytest.mark.parametrize("how", SAYS)
async def test_the_secrets_of_a_result_reach_neither_model_nor_app_nor_log(
    claude: AnthropicService, tmp_path: Path, how: str
) -> None:
    claude.replies += [Reply(calls=(call("look"),)), Reply(text="Hm.")]
    with capture_logs() as logged:
        async with configured(
            claude, tmp_path, anthropic_api_key=KEY, auth_tokens=(TOKEN,), admin_token=ADMIN
        ) as server:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            async with server.phone(tools={"look": SAYS[how]}, headers=headers) as phone:
                await begin(phone, "activity", "approval")
                await phone.ask("look")
                assert len(phone.runs) == 1
                assert leaked(json.dumps(phone.log)) == []
    (result,) = results_of(claude.requests[-1])
    assert leaked(json.dumps(claude.requests[-1])) == []
    assert "[REDACTED:" in json.dumps(result) or "shortened" in result["data"]
    assert logged and leaked(str(logged)) == []


async def test_secrets_that_the_server_does_not_use_are_redacted_too_also_after_a_reload(
    claude: AnthropicService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signing = base64.b64encode(b"a secret of thirty-two bytes ...").decode()
    (tmp_path / "webhooks.toml").write_text(f'url = "http://127.0.0.1:1/"\nsecret = "whsec_{signing}"\n')
    literal = '{Authorization = "Bearer literal-0815", "X-Api-Key" = "other-literal-4711"}'
    (tmp_path / "tools.toml").write_text(
        f'[[tool]]\nname = "radio"\ndescription = "The radio."\nurl = "http://127.0.0.1:1/?api_key=in-the-query"\n'
        f'headers = {literal}\ninput_schema = {{type = "object"}}\n'
    )
    servers = {"mail": {"command": "true", "env": {"MAIL_PASSWORD": "literal-of-mail"}}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    monkeypatch.setenv(
        "OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20trace-0451, x-team=team-of-traces"
    )
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "api-key=only-for-traces")
    secrets = {
        *("unused-of-openai-1", signing, "literal-0815", "other-literal-4711"),
        *("in-the-query", "literal-of-mail", "trace-0451", "team-of-traces", "only-for-traces"),
    }
    async with configured(
        claude,
        tmp_path,
        openai_api_key="unused-of-openai-1",
        config_dir=tmp_path,
    ) as server:
        async with server.phone(tools={"look": lambda a: f"We know {' and '.join(secrets)}."}) as phone:
            await begin(phone)
            for _ in range(2):
                claude.replies += [Reply(calls=(call("look"),)), Reply(text="Hm.")]
                await phone.ask("look")
                (result,) = results_of(claude.requests[-1])
                assert [secret for secret in secrets if secret in result["data"]] == []
                server.reload()


async def test_the_secrets_of_a_late_result_reach_neither_model_nor_app_nor_log(
    claude: AnthropicService, tmp_path: Path
) -> None:
    claude.replies += [
        Reply(calls=(call("look"),)),
        Reply(text="It does not answer."),
        Reply(text="It came late."),
    ]
    with capture_logs() as logged:
        async with configured(claude, tmp_path, anthropic_api_key=KEY, admin_token=ADMIN) as server:
            async with server.phone() as phone:
                await begin(phone, "late", tools=[extended(LOOK, timeoutMs=LIMIT_MS)])
                await phone.ask("look")
                asking = phone.events("look")[0]
                since = len(phone.log)
                phone.result(asking["payload"]["callId"], json.dumps({**LEAK, "note": f"{KEY} {ADMIN}"}))
                await phone.until("assistant.speech.final", since=since)
                await phone.idle(since=since)
                assert leaked(json.dumps(phone.log)) == []
    assert "late result" in last_text(claude.requests[-1])
    assert leaked(json.dumps(claude.requests[-1])) == []
    assert leaked(str(logged)) == []


@pytest.mark.parametrize("by_card", [True, False])
async def test_a_question_redacts_secrets_in_the_arguments(
    claude: AnthropicService, tmp_path: Path, by_card: bool
) -> None:
    claude.replies += [Reply(calls=(call("move_file", f"{KEY}/{FOREIGN[0]}"),)), Reply(text="Very well.")]
    with capture_logs() as logged:
        async with configured(claude, tmp_path, anthropic_api_key=KEY) as server, server.phone() as phone:
            await begin(phone, *(["approval"] if by_card else []))
            if by_card:
                request = await ask_deciding(phone, "move it", "deny")
                assert request["payload"]["arguments"]["path"].startswith("[REDACTED:secret]/")
            else:
                await ask_aloud(phone, "move it", "no")
            assert leaked(json.dumps(phone.log)) == []
    assert leaked(str(logged)) == []


async def test_a_secret_in_edited_arguments_or_a_message_does_not_reach_the_model(
    claude: AnthropicService, tmp_path: Path
) -> None:
    claude.replies += [Reply(calls=(call("move_file"),)), Reply(text="Moved.")]
    async with configured(claude, tmp_path, anthropic_api_key=KEY) as server:
        async with server.phone(tools={"move_file": lambda a: "moved"}) as phone:
            await begin(phone, "approval")
            edited = {"path": f"{KEY} {FOREIGN[0]}"}
            await ask_deciding(phone, "move it", "edit", editedArguments=edited, message=f"with {KEY}")
            assert phone.runs == [("move_file", edited)]
    (result,) = results_of(claude.requests[-1])
    assert any("changed the arguments" in note for note in result["metadata"]["notes"])
    assert leaked(json.dumps(claude.requests[-1])) == []
