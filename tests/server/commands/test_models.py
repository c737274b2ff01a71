"""``conductor models``, with scripted models and services on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from conductor.commands.models import probe_items
from conductor.messages import ToolCall
from conductor.models.base import Finished, ModelRequest, TextDelta, Usage
from conductor.models.profiles import ModelProfile
from tests.conftest import Main
from tests.models import Script, ScriptedProvider

SECRET = "sk-hunter2-hunter2"
HOME = ModelProfile(name="home", provider="demo")
CALL: Script = [ToolCall("c", "get_weather", '{"place":"Berlin"}')]
WORDS: Script = [TextDelta("one, "), TextDelta("two"), Finished("end_turn", Usage(5, 2))]


@pytest.fixture
def service() -> Iterator[Callable[[Any], str]]:
    """Serve a JSON answer at ``/v1/models``; returns its address."""
    servers: list[ThreadingHTTPServer] = []

    def serve(answer: Any) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_list = self.path.startswith("/v1/models")
                body = json.dumps(answer).encode()
                self.send_response(200 if is_list else 404)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Do not log."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def replies(tools: Script, words: Script = WORDS) -> ScriptedProvider:
    def reply(request: ModelRequest) -> Script:
        return tools if request.tools else words

    return ScriptedProvider(reply)


async def run_probe(provider: ScriptedProvider, profile: ModelProfile = HOME) -> list[str]:
    return [str(item) async for item in probe_items(provider, profile)]


async def test_a_capable_model_passes_the_probe() -> None:
    lines = await run_probe(replies(CALL))
    assert [line.split(":")[0] for line in lines] == [
        "ok    answers",
        "ok    tools",
        "ok    streaming",
        "ok    cancellation",
    ]
    assert lines[2].startswith("ok    streaming: 2 pieces within ") and "tokens a second." in lines[2]


async def test_a_text_model_is_probed_for_its_text_calls() -> None:
    text = HOME.model_copy(update={"kind": "text"})
    assert "ok    tools: called, as text." in await run_probe(replies(CALL), text)
    assert "warn  tools: not called, in spite of instructions." in await run_probe(replies(WORDS), text)


async def test_a_reply_in_one_piece_is_a_warning() -> None:
    lines = await run_probe(replies(CALL, [TextDelta("all at once")]))
    assert lines[2].startswith("warn  streaming")


MODELS = """
default = "home"
[[profile]]
name = "home"
provider = "demo"
fallback = ["cloud"]
[[profile]]
name = "cloud"
provider = "anthropic"
model = "claude-test"
base_url = "{}"
api_key_env = "CLOUD_KEY"
prices = {{ input = 1, output = 5.5 }}
"""


def test_profiles_and_models_of_services_are_listed(
    conductor: Main, tmp_path: Path, service: Callable[[Any], str]
) -> None:
    url = service({"data": [{"id": "claude-a", "type": "model"}, {"id": "b\x1b[2J", "type": "model"}]})
    (tmp_path / "models.toml").write_text(MODELS.format(url))
    code, out, err = conductor("models", "list", CLOUD_KEY=SECRET)
    head, home, cloud, blank, offer = out.splitlines()
    assert (code, err, blank) == (0, "", "")
    assert home.split()[:4] == ["home", "demo", "native", "cloud"] and home.endswith("by default")
    assert "Claude (claude-test)" in cloud and cloud.split()[-3:] == ["1", "5.5", "-"]
    assert offer == "cloud offers claude-a, b\\u001b[2J"
    assert "offers" not in conductor("models", "list", "--offline", CLOUD_KEY=SECRET)[1]
    assert "are not listed" in conductor("models", "list", CLOUD_KEY=SECRET, LOCAL_ONLY="true")[1]


def test_an_unreachable_service_is_an_error(conductor: Main, tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(MODELS.format("http://127.0.0.1:1"))
    code, out, err = conductor("models", "list", CLOUD_KEY=SECRET)
    assert (code, err) == (2, "") and "cloud did not list its models: ConnectError" in out
    assert SECRET not in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["probe", "away"], 'There is no profile "away". Profiles: home, cloud.'),
        (["probe", "cloud"], "cloud: Claude (claude-test): The connection to the model service failed."),
    ],
)
def test_a_wrong_argument_is_an_error(
    conductor: Main, tmp_path: Path, arguments: list[str], says: str
) -> None:
    (tmp_path / "models.toml").write_text(MODELS.format("http://127.0.0.1:1"))
    code, out, err = conductor("models", *arguments, CLOUD_KEY=SECRET)
    assert (code, err) == (2, f"conductor: {says}\n")


def test_the_demo_is_probed(conductor: Main) -> None:
    code, out, _ = conductor("models", "probe", MODEL_PROVIDER="demo")
    assert code == 0 and out.startswith("default: demo\nok    answers: ") and "ok    streaming: " in out
