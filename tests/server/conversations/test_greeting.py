"""What an app gives at the start of a session: a greeting, and the variables of the system prompt."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app import App
from tests.models import AnthropicService, JsonObject, Reply
from tests.server.wires import until
from tests.serving import Configured, configured, provider_for, serving

GREETING = "Good **morning**, Ann."
FIELDS = {"capabilities": ["resume", "inspect"], "greeting": GREETING}


async def test_a_greeting_is_spoken_first_without_the_model_and_the_model_knows_it(
    claude: AnthropicService,
) -> None:
    claude.replies.append(Reply(text="Well."))
    async with serving(provider_for(claude)) as served, served.phone(start_fields=FIELDS) as phone:
        await phone.until("tts.speak")
        await phone.idle()
        assert phone.finals() == [GREETING] and phone.speeches() == ["Good morning, Ann."]
        assert not phone.events("state thinking") and not claude.requests
        await phone.ask("Hello.")
        begin, greeting, words = claude.requests[0]["messages"]
        assert "greets the user" in begin["content"][0]["text"]
        assert greeting["content"][0]["text"] == GREETING and words["content"][0]["text"] == "Hello."


async def test_a_greeting_is_given_once_a_session(claude: AnthropicService, tmp_path: Path) -> None:
    """Not at a resume, not to another client, and not in another process."""
    store = f"sqlite:///{tmp_path}/s.db"
    async with configured(claude, tmp_path, session_store_url=store) as server:
        async with server.phone(start_fields=FIELDS) as phone:
            await phone.until("tts.speak")
            await phone.idle()
            await phone.cut()
            await phone.open()
            await phone.idle(since=len(phone.log) - 1)
        async with server.phone(start_fields=FIELDS) as other:
            await other.idle()
            assert other.finals() == []
    async with configured(claude, tmp_path, session_store_url=store) as server:
        phone.url = server.url
        await phone.open()
        async with server.phone("s-2", start_fields=FIELDS) as second:
            await second.until("tts.speak")
        (session,) = [s for s in server.listener.registry.sessions if s.key.session_id == "s-1"]
        assert len(session.state.log) == 2
        await phone.close()
    assert phone.finals() == [GREETING]


@pytest.mark.parametrize("fields", [{"resume": {}}, {"greeting": " "}, {"greeting": None}])
async def test_there_is_none_where_the_app_resumes_or_gives_none(
    claude: AnthropicService, fields: JsonObject
) -> None:
    async with serving(provider_for(claude)) as served:
        async with served.phone(start_fields={**FIELDS, **fields}):
            (session,) = served.listener.registry.sessions
            assert session.state.log == []


# -- variables


async def begin(server: Configured, variables: object) -> App:
    """Start a session, and wait for the answer."""
    phone = server.phone(start_fields={"capabilities": ["inspect"], "variables": variables})
    await phone.open(start=False)
    phone.start()
    await until(lambda: bool(phone.log))
    return phone


def prompt_file(folder: Path) -> Path:
    file = folder / "shop.md"
    file.write_text("You sell books at {{shop}} to {{person}}.")
    return file


async def test_variables_are_in_the_system_prompt_whose_name_and_version_are_told(
    claude: AnthropicService, tmp_path: Path
) -> None:
    claude.replies.append(Reply(text="Well."))
    async with configured(claude, tmp_path, system_prompt_file=prompt_file(tmp_path)) as server:
        phone = await begin(server, {"shop": "{{person}}", "person": "Ann"})
        await phone.ask("Hello.")
        assert claude.requests[0]["system"][0]["text"].startswith("You sell books at {{person}} to Ann.")
        phone.send("tools.list", {})
        listed = (await phone.until("tools.listed"))["payload"]
        assert (listed["promptName"], len(listed["promptVersion"])) == ("shop", 12)
        await phone.close()


@pytest.mark.parametrize(
    "variables",
    [
        {"shop": "Corner", "person": "Ann", "owner": "Bob"},
        {"shop": "Corner", "person": "x" * 201},
        {"shop": 7, "person": "Ann"},
        ["shop"],
    ],
)
async def test_other_variables_are_an_error_at_the_start(
    claude: AnthropicService, tmp_path: Path, variables: object
) -> None:
    async with configured(claude, tmp_path, system_prompt_file=prompt_file(tmp_path)) as server:
        phone = await begin(server, variables)
        (error,) = phone.events("error")
        assert error["payload"]["code"] == "invalid_event" and error["payload"]["eventId"]
        assert not phone.events("session.started")
        phone.start_fields = {"variables": {"shop": "Corner", "person": "Ann"}}
        phone.start()
        await phone.until("session.started")
        await phone.close()


@pytest.mark.parametrize("variables", [{"shop": "Corner"}, {}, None], ids=["one", "none", "without"])
async def test_a_variable_without_a_value_is_empty_and_the_apps_developer_learns_it(
    claude: AnthropicService, tmp_path: Path, variables: dict[str, str] | None
) -> None:
    """An operator can add one before the apps know it, and the apps can give one up before the operator."""
    claude.replies.append(Reply(text="Well."))
    async with configured(claude, tmp_path, system_prompt_file=prompt_file(tmp_path)) as server:
        fields = {"capabilities": ["diagnostics"], "variables": variables}
        async with server.phone(start_fields=fields) as phone:
            await phone.ask("Hello.")
            shop = "Corner" if variables else ""
            assert claude.requests[0]["system"][0]["text"].startswith(f"You sell books at {shop} to .")
            told = [event["payload"] for event in phone.events("diagnostic")]
            names = ["person"] if variables else ["person", "shop"]
            assert [diagnostic["code"] for diagnostic in told] == ["missing_variable"] * len(names)
            assert all(repr(name) in told[at]["message"] for at, name in enumerate(names))


@pytest.mark.parametrize("value", ["x" * 201, 7, None, {"a": "b"}], ids=["long", "number", "null", "object"])
async def test_a_bad_value_is_an_error_that_names_its_variable_and_not_the_value(
    claude: AnthropicService, tmp_path: Path, value: object
) -> None:
    async with configured(claude, tmp_path, system_prompt_file=prompt_file(tmp_path)) as server:
        phone = await begin(server, {"shop": "Corner", "person": value})
        (error,) = phone.events("error")
        assert error["payload"]["message"].endswith("at `$.variables['person']`")
        assert "xx" not in error["payload"]["message"]
        await phone.close()


async def test_a_session_comes_back_with_its_variables_after_the_prompt_has_changed(
    claude: AnthropicService, tmp_path: Path
) -> None:
    claude.replies.append(Reply(text="Well."))
    file, variables = prompt_file(tmp_path), {"shop": "Corner", "person": "Ann"}
    async with configured(claude, tmp_path, system_prompt_file=file) as server:
        phone = await begin(server, variables)
        await phone.close()
        file.write_text("You sell books at {{shop}} {{day}}.")
        server.reload()
        phone = await begin(server, variables)
        assert (await phone.until("session.started"))["payload"]["resumed"]
        await phone.ask("Hello.")
        assert claude.requests[0]["system"][0]["text"].startswith("You sell books at Corner .")
        since = len(phone.log)
        phone.start_fields = {"variables": {**variables, "person": "Eve"}}
        phone.start()
        error = await phone.until("error", since=since)
        assert error["payload"]["message"] == "The system prompt has no variable 'person'."
        await phone.close()
