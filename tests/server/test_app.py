"""From settings to a running server and its shutdown."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import socket
import sqlite3
import sysconfig
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import SecretStr

import conductor
from conductor.app import make_services, running
from conductor.commands.process import GC_THRESHOLDS, settle_memory
from conductor.commands.reload import reload
from conductor.errors import SettingsError
from conductor.models.base import Finished, ModelEvent, ModelRequest, TextDelta
from conductor.plugins.tools.folders import file_roots, knowledge_index, notes_dir
from conductor.plugins.tools.knowledge_index import KnowledgeIndex, Update
from conductor.plugins.tools.sandbox import CancelFlag
from conductor.server.address import check_exposure
from conductor.settings import Settings, is_loopback, load_settings, program_token
from conductor.tools.base import CallContext
from conductor.tools.toolsets import make_redactor
from tests.app import App
from tests.models import ScriptedProvider
from tests.server.test_cli import START, Announced, server
from tests.server.wires import WAIT
from tests.services.ports import free_port


class Watched:
    """A provider that records its start and end; its start may fail or never end."""

    name = "watched"

    def __init__(self, fails: bool = False, hangs: bool = False) -> None:
        self.fails, self.hangs = fails, hangs
        self.started = asyncio.Event()
        self.closed = False

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        yield TextDelta("Hi.")
        yield Finished("end_turn")

    async def start(self) -> None:
        self.started.set()
        if self.fails:
            raise RuntimeError("no such library")
        if self.hangs:
            await asyncio.Event().wait()

    async def aclose(self) -> None:
        self.closed = True


def settings(**values: object) -> Settings:
    return load_settings(None, port=0, model_provider="demo", **values)


# -- what is put together


@pytest.mark.parametrize(("window", "tokens"), [(None, 60_000), (8_192, 4_096), (200_000, 60_000)])
def test_the_history_takes_at_most_half_of_the_models_context(
    tmp_path: Path, window: int | None, tokens: int
) -> None:
    own = f"context_window = {window}\n" if window else ""
    profile = 'name = "home"\nprovider = "openai"\nbase_url = "http://127.0.0.1:1/v1"\nmodel = "m"\n'
    (tmp_path / "models.toml").write_text(f'default = "home"\n[[profile]]\n{profile}{own}')
    assert make_services(Settings(config_dir=tmp_path)).history_tokens == tokens


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a working folder for the server, and next to it a folder for its tools."""
    (tmp_path / "server" / "shared").mkdir(parents=True)
    (tmp_path / "files" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "server")
    return tmp_path


def refused(root: Path | str, **values: object) -> str:
    with pytest.raises(SettingsError) as caught:
        make_services(settings(file_roots=(str(root),), **values))
    message = str(caught.value)
    assert message.startswith(f"FILE_ROOTS: {root} ") and "\n" not in message
    return message


def test_folders_of_the_file_tools_contain_no_file_of_the_server(folders: Path) -> None:
    assert file_roots(settings(file_roots=(str(folders / "files"), "shared"))) == [
        folders / "files",
        Path("shared"),
    ]
    for root in (folders / "server", folders, ".", "shared/..", "/"):
        assert "contains its settings (.env)" in refused(root)
    (folders / "alias").symlink_to(folders / "server")
    refused(folders / "alias")
    for root in ("/proc", "/proc/self", "/sys/kernel"):
        assert "contains the state of the system" in refused(root)


FOR_TOOLS = ("notes_dir", "knowledge_dir")
PATHS = [name for name, field in Settings.model_fields.items() if Path in get_args(field.annotation)]


@pytest.mark.parametrize("name", [name for name in PATHS if name not in FOR_TOOLS])
@pytest.mark.parametrize("root", ["files", "files/deep"])
@pytest.mark.parametrize("exists", [True, False])
def test_folders_of_the_file_tools_contain_no_file_of_a_setting(
    folders: Path, name: str, root: str, exists: bool
) -> None:
    own = folders / "files" / "deep" / "own"
    if exists:
        own.mkdir() if name in ("data_dir", "tools_path") else own.touch()
    assert str(own) in refused(folders / root, **{name: own})
    refused(folders / root, **{name: folders / "server" / ".." / "files" / "deep" / "own"})
    link = folders / "server" / "link"
    link.symlink_to(own)
    assert str(link) in refused(folders / root, **{name: link})
    make_services(settings(file_roots=("shared",), data_dir=folders / "server"))


@pytest.mark.parametrize("name", ["models.toml", "tools.toml", "mcp.json", "webhooks.toml", "policies.json"])
def test_the_file_in_the_working_folder_may_be_a_link(folders: Path, name: str) -> None:
    own = folders / "files" / name
    own.touch()
    (folders / "server" / name).symlink_to(own)
    assert f"({name})" in refused(folders / "files")


def test_a_text_that_names_a_file_is_a_path(folders: Path) -> None:
    model = folders / "files" / "small.gguf"
    assert file_roots(settings(file_roots=("../files",), llama_cpp_model=str(model)))
    model.touch()
    assert "contains LLAMA_CPP_MODEL" in refused("../files", llama_cpp_model=str(model))


@pytest.mark.parametrize("name", ["JWT_KEYS", "KEY_OF_A_PLUGIN"])
@pytest.mark.parametrize("tools", ["file_roots", *FOR_TOOLS])
def test_no_folder_of_the_tools_contains_a_file_of_a_variable(
    folders: Path, monkeypatch: pytest.MonkeyPatch, name: str, tools: str
) -> None:
    keys = folders / "files" / "deep" / "keys.json"
    keys.touch()
    folder = ("../files",) if tools == "file_roots" else Path("../files")
    values: dict[str, Any] = {tools: folder, "data_dir": folders / "data"}
    mistake = rf"^{tools.upper()}: \.\./files contains {name} \(.*keys\.json\); use another folder\.$"
    make_services(settings(**values))
    (folders / "server" / ".env").write_text(f"{name}={keys}\n")
    with pytest.raises(SettingsError, match=mistake):
        make_services(settings(**values))
    (folders / "server" / ".env").unlink()
    monkeypatch.setenv(name, "../files/deep/keys.json")
    with pytest.raises(SettingsError, match=mistake):
        make_services(settings(**values))


def test_the_folder_of_notes_is_checked_too(folders: Path) -> None:
    assert notes_dir(settings()) is None
    assert notes_dir(settings(notes_dir=folders / "files")) == folders / "files"
    with pytest.raises(SettingsError, match="^NOTES_DIR: .*missing is not a folder.$"):
        notes_dir(settings(notes_dir=folders / "missing"))
    with pytest.raises(SettingsError, match=r"^NOTES_DIR: \. contains its settings \(\.env\)"):
        notes_dir(settings(notes_dir=Path(".")))


def test_the_knowledge_base_needs_a_folder_and_a_place_for_its_index(folders: Path) -> None:
    assert knowledge_index(settings(data_dir=folders)) is None
    with pytest.raises(SettingsError, match="^KNOWLEDGE_DIR: .*missing is not a folder.$"):
        make_services(settings(knowledge_dir=folders / "missing", data_dir=folders / "data"))
    with pytest.raises(SettingsError, match="^KNOWLEDGE_DIR needs DATA_DIR, the folder of its index"):
        make_services(settings(knowledge_dir=folders / "files"))


async def test_a_server_keeps_its_knowledge_base_up_to_date(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, updated = asyncio.get_running_loop(), asyncio.Event()
    update = KnowledgeIndex.update

    def watched(index: KnowledgeIndex, stop: CancelFlag) -> Update:
        try:
            return update(index, stop)
        finally:
            loop.call_soon_threadsafe(updated.set)

    monkeypatch.setattr(KnowledgeIndex, "update", watched)
    (folders / "files" / "heron.md").write_text("Herons fish.")
    values = settings(knowledge_dir=folders / "files", data_dir=folders / "data")
    services = make_services(values, Watched())
    async with running(values, services), asyncio.timeout(WAIT):
        await updated.wait()
        tools, context = services.toolsets[0], CallContext(session_id="s", call_id="c")
        outcome = await tools.call("query_knowledge_base", {"query": "heron"}, context)
    assert [result["path"] for result in outcome.data["results"]] == ["heron.md"]


def test_folders_of_the_file_tools_contain_no_link_to_the_servers_files(folders: Path) -> None:
    (folders / "rules.json").write_text('{"version": 1, "rules": []}')
    (folders / "files" / "link").symlink_to(folders / "rules.json")
    refused(folders / "files", policies_file=folders / "files" / "link")


def test_folders_of_the_file_tools_contain_neither_the_database_nor_the_code(folders: Path) -> None:
    assert "the sessions" in refused(
        folders / "files", session_store_url=f"sqlite:///{folders}/files/new/x.db"
    )
    assert "the server's code" in refused(Path(conductor.__file__).parent)
    assert "installed packages" in refused(Path(sysconfig.get_path("purelib")).parent)


@pytest.mark.parametrize("root", ["none", "~nobody-of-that-name/x"])
def test_a_root_that_is_not_a_folder_is_refused(folders: Path, root: str) -> None:
    assert "not a folder" in refused(root)


def test_the_stores_password_is_one_of_the_secrets() -> None:
    redactor = make_redactor(settings(session_store_url="redis://me:hunter2%40@h"), [])
    assert "hunter2@" not in redactor.text("it is hunter2@")


SECRET_FIELDS = [
    name
    for name, field in Settings.model_fields.items()
    if not field.repr or SecretStr in get_args(field.annotation)
]
FORMS = {"api_keys": "shop:{}:read", "session_store_url": "redis://me:{}@h"}


@pytest.mark.parametrize("name", SECRET_FIELDS)
def test_each_secret_field_of_the_settings_is_redacted_used_or_not(name: str) -> None:
    secret = "correct-horse-battery-staple"
    values = {name: FORMS.get(name, "{}").format(secret)}
    assert secret not in make_redactor(settings(**values), []).text(f"it is {secret}, as you know")


def test_the_token_of_programs_is_redacted() -> None:
    app = "a-token-of-the-tests"
    text = make_redactor(settings(auth_tokens=(app,)), []).text(f"it is {program_token(app)}, as you know")
    assert text == "it is [REDACTED:secret], as you know"


@pytest.mark.parametrize("name", ["anthropic_base_url", "otel_exporter_otlp_endpoint", "web_search"])
def test_a_password_in_an_address_of_the_settings_is_redacted(name: str) -> None:
    redactor = make_redactor(settings(**{name: "https://me:correct-horse@host.example/v1"}), [])
    assert "correct-horse" not in redactor.text("it is correct-horse")


# -- who may reach it


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("example.org", False),
        ("localhost.example.org", False),
    ],
)
def test_other_machines_need_tokens_or_the_option_for_no_tokens(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
    check_exposure(settings(host=host, auth_tokens="a-token-of-a-client"), insecure=False)
    check_exposure(settings(host=host), insecure=True)
    if loopback:
        check_exposure(settings(host=host), insecure=False)
    else:
        with pytest.raises(SettingsError, match=f"Listening on {host} without tokens .* AUTH_TOKENS"):
            check_exposure(settings(host=host), insecure=False)


@pytest.mark.parametrize("name", ["auth_tokens", "admin_token"])
@pytest.mark.parametrize("exposed", [{"host": "0.0.0.0"}, {"trusted_proxies": "10.0.0.0/8"}])
def test_other_machines_need_tokens_that_cannot_be_guessed(exposed: dict[str, str], name: str) -> None:
    values = {"auth_tokens": "a-token-of-a-client", **exposed}
    for token in ("x", "hunter2"):
        check_exposure(settings(**{name: token}), insecure=False)
        check_exposure(settings(**{**values, name: token}), insecure=True)
        with pytest.raises(
            SettingsError, match=f"^{name.upper()} has a token .* needs 8 characters or more, and 16 "
        ) as caught:
            check_exposure(settings(**{**values, name: token}), insecure=False)
        assert "hunter2" not in str(caught.value)


def test_a_budget_of_money_needs_prices(tmp_path: Path) -> None:
    needs = "^DAILY_COST_BUDGET needs prices, and {} has none: set prices in"
    limit = {"daily_cost_budget": 1}
    claude = {"anthropic_api_key": "sk-key", **limit}
    with pytest.raises(SettingsError, match=needs.format("demo")):
        make_services(settings(**limit))
    make_services(load_settings(None, **claude))
    with pytest.raises(SettingsError, match=needs.format("Claude .*")):
        make_services(load_settings(None, anthropic_base_url="https://gateway.example", **claude))
    models = tmp_path / "models.toml"
    for prices, has_prices in (("", False), ("prices = {}", True), ("prices = { input = 1 }", True)):
        models.write_text(f'default = "home"\n[[profile]]\nname = "home"\nprovider = "demo"\n{prices}\n')
        values = load_settings(None, config_dir=models.parent, **limit)
        if has_prices:
            make_services(values)
        else:
            with pytest.raises(SettingsError, match=needs.format("home: demo")):
                make_services(values)


# -- a server that runs


async def test_a_server_answers_during_its_block_and_frees_its_port() -> None:
    provider, port = Watched(), free_port()
    values = settings().model_copy(update={"port": port})
    async with running(values, make_services(values, provider)) as listener:
        assert listener.port == port
        async with App(f"ws://127.0.0.1:{port}/ws") as phone:
            await phone.ask("hi")
            assert phone.finals() == ["Hi."]
        await asyncio.wait_for(provider.started.wait(), WAIT)
    assert provider.closed
    with socket.create_server(("127.0.0.1", port)):
        pass  # the port is free again


async def test_a_provider_that_cannot_start_is_logged_and_the_server_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    unhandled: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    provider = Watched(fails=True)
    async with running(settings(), make_services(settings(), provider)) as listener:
        async with App(f"ws://127.0.0.1:{listener.port}/ws") as phone:
            await phone.ask("hi")
            assert phone.finals() == ["Hi."]
    assert provider.closed and unhandled == []
    assert "model provider did not start" in capsys.readouterr().out


async def test_a_provider_that_does_not_start_does_not_delay_the_shutdown() -> None:
    provider = Watched(hangs=True)
    async with asyncio.timeout(WAIT):
        async with running(settings(), make_services(settings(), provider)):
            await provider.started.wait()
    assert provider.closed


async def test_a_port_in_use_is_reported_before_anything_starts() -> None:
    provider = Watched()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        values = settings().model_copy(update={"port": listening.getsockname()[1]})
        with pytest.raises(SettingsError, match="is in use"):
            async with running(values, make_services(values, provider)):
                raise AssertionError("it listens")
    assert not provider.started.is_set()


async def test_an_unusable_store_is_reported_before_the_port_opens(tmp_path: Path) -> None:
    file = tmp_path / "conductor.db"
    for values, sentence in (
        (
            {"session_store_url": "redis://:hunter2@127.0.0.1:1"},
            "^SESSION_STORE_URL names redis://127.0.0.1:1, which cannot",
        ),
        ({"data_dir": tmp_path}, "cannot be used: database is locked"),
    ):
        with sqlite3.connect(file) as database:
            database.execute("BEGIN EXCLUSIVE")
            port = free_port()
            loaded = settings(**values).model_copy(update={"port": port})
            with pytest.raises(SettingsError, match=sentence):
                async with running(loaded, make_services(loaded, Watched())):
                    raise AssertionError("it listens")
            with socket.create_server(("127.0.0.1", port)):
                pass
        database.close()


# -- a prompt and a catalog that change while it runs


class Files:
    """The operator's two files."""

    def __init__(self, folder: Path) -> None:
        self.prompt = folder / "prompt.md"
        self.catalog = folder / "tools.json"
        self.write("You are a parrot.", "bird.feed")

    def write(self, prompt: str, *tools: str) -> None:
        self.prompt.write_text(prompt)
        wishes = {"conductor": {"approval": "never"}}
        declarations = [{"name": name, "inputSchema": {"type": "object"}, "_meta": wishes} for name in tools]
        self.catalog.write_text(json.dumps({"tools": declarations}))

    def damage(self, which: str, how: str) -> Path:
        path = self.prompt if which == "prompt" else self.catalog
        path.write_bytes(b"\xff" if how == "not UTF-8" else b"")
        if how in ("gone", "a folder"):
            path.unlink()
        if how == "a folder":
            path.mkdir()
        return path

    @property
    def settings(self) -> Settings:
        return settings(system_prompt_file=self.prompt, device_tools_file=self.catalog)

    @property
    def environment(self) -> dict[str, str]:
        return {"SYSTEM_PROMPT_FILE": str(self.prompt), "DEVICE_TOOLS_FILE": str(self.catalog)}


def device_tools(request: ModelRequest) -> set[str]:
    return {tool.name for tool in request.tools if "." in tool.name}


async def test_a_reload_is_used_by_the_next_turn_of_a_session_that_is_there(tmp_path: Path) -> None:
    files = Files(tmp_path)
    provider = ScriptedProvider(lambda _: [TextDelta("Hi.")])
    services = make_services(files.settings, provider)
    async with running(files.settings, services) as listener:
        async with App(f"ws://127.0.0.1:{listener.port}/ws", start_fields={"locale": "de-DE"}) as phone:
            await phone.ask("hi")
            files.write("You are a goldfish.", "fish.feed", "fish.look")
            await phone.ask("not yet")
            reload(files.settings, services, listener)
            await phone.ask("and now?")
            async with App(f"ws://127.0.0.1:{listener.port}/ws", "s-2") as newcomer:
                await newcomer.ask("hi")
    first, second, third, new = provider.requests
    for request in (first, second):
        assert request.system.startswith("You are a parrot.")
        assert device_tools(request) == {"bird.feed"}
    for request in (third, new):
        assert request.system.startswith("You are a goldfish.")
        assert device_tools(request) == {"fish.feed", "fish.look"}
    assert "de-DE" in third.system, "the session's own parts stay"
    assert len(third.messages) == 5, "and so does the conversation"


async def test_a_reload_leaves_a_session_the_tools_that_its_client_declared(tmp_path: Path) -> None:
    files = Files(tmp_path)
    provider = ScriptedProvider(lambda _: [TextDelta("Hi.")])
    services = make_services(files.settings, provider)
    own = {"capabilities": ["tools"], "tools": [{"name": "own.tool", "inputSchema": {"type": "object"}}]}
    async with running(files.settings, services) as listener:
        async with App(f"ws://127.0.0.1:{listener.port}/ws", start_fields=own) as phone:
            files.write("You are a goldfish.", "fish.feed")
            reload(files.settings, services, listener)
            await phone.ask("hi")
    (request,) = provider.requests
    assert request.system.startswith("You are a goldfish.") and device_tools(request) == {"own.tool"}


@pytest.mark.parametrize("broken", ["prompt", "catalog"])
@pytest.mark.parametrize("how", ["empty", "not UTF-8", "gone", "a folder"])
async def test_a_reload_of_a_broken_file_changes_nothing_and_is_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], broken: str, how: str
) -> None:
    files = Files(tmp_path)
    provider = ScriptedProvider(lambda _: [TextDelta("Hi.")])
    services = make_services(files.settings, provider)
    async with running(files.settings, services) as listener:
        async with App(f"ws://127.0.0.1:{listener.port}/ws") as phone:
            files.write("You are a goldfish.", "fish.feed")  # the other file is good, and is not used either
            path = files.damage(broken, how)
            reload(files.settings, services, listener)
            await phone.ask("hi")
            output = capsys.readouterr().out
            assert "reload failed" in output and path.name in output and "Traceback" not in output
    (request,) = provider.requests
    assert request.system.startswith("You are a parrot.") and device_tools(request) == {"bird.feed"}


async def log_line(served: Announced, event: str) -> dict[str, object]:
    """Read a server's log until an event; give its fields."""
    assert served.process.stderr is not None
    while True:
        line = await asyncio.wait_for(served.process.stderr.readline(), START)
        assert line, f"it ended without {event!r}"
        if line.startswith(b"{"):
            fields: dict[str, object] = json.loads(line)
            if fields.get("event") == event:
                return fields


async def test_sighup_reloads_without_closing_connections(tmp_path: Path) -> None:
    files = Files(tmp_path)
    async with server(tmp_path, LOG_FORMAT="json", **files.environment) as served:
        async with App(served.url) as phone:
            await phone.ask("say hello")
            files.write("You are a goldfish.", "fish.feed")
            served.process.send_signal(signal.SIGHUP)
            assert (await log_line(served, "reloaded"))["sessions"] == 1
            files.catalog.write_text('{"tools": [')
            served.process.send_signal(signal.SIGHUP)
            refused = await log_line(served, "reload failed")
            assert refused["level"] == "error" and "tools.json is not valid JSON" in str(refused["reason"])
            await phone.ask("say hello")
            assert len(phone.finals()) == 2 and not phone.closed.is_set()
            files.write("You are a parrot again.", "bird.feed")
            served.process.send_signal(signal.SIGHUP)
            await log_line(served, "reloaded")
        assert await served.end(signal.SIGTERM) == 0


async def test_a_crowd_of_silent_sockets_does_not_take_all_descriptors(tmp_path: Path) -> None:
    values = {"DATA_DIR": str(tmp_path), "WORKERS": "2", "LOG_FORMAT": "json", "FILES": "256"}
    async with server(tmp_path, **values) as served:
        warning = json.loads(served.lines[0])
        assert (warning["level"], warning["connections"]) == ("warning", 128)
        assert warning["event"] == "MAX_CONNECTIONS is limited by ulimit -Hn"
        address = ("127.0.0.1", int(served.url.rpartition(":")[2].partition("/")[0]))
        silent = [socket.create_connection(address) for _ in range(600)]
        try:
            for number in range(5):
                async with App(served.url, session_id=f"s-{number}") as phone:
                    await phone.ask("say hello")
            assert (await log_line(served, "request refused"))["reason"] == "too many handshakes"
        finally:
            for connection in silent:
                connection.close()


async def test_loaded_objects_are_exempt_from_garbage_collection_once_the_model_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warm = asyncio.Event()
    provider = ScriptedProvider([])
    settings = load_settings(None, port=0)
    async with running(settings, make_services(settings, provider), warm.set):
        await asyncio.wait_for(warm.wait(), START)
    thresholds = gc.get_threshold()
    try:
        settle_memory()
        assert gc.get_freeze_count() > 10_000 and gc.get_threshold() == GC_THRESHOLDS
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
