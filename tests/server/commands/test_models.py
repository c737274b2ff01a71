"""``conductor models``, with scripted models and services on loopback."""

from __future__ import annotations

from pathlib import Path

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


def test_profiles_are_listed(conductor: Main, tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(MODELS.format("http://127.0.0.1:1"))
    code, out, err = conductor("models", "list", CLOUD_KEY=SECRET)
    head, home, cloud = out.splitlines()
    assert (code, err) == (0, "")
    assert home.split()[:4] == ["home", "demo", "native", "cloud"] and home.endswith("by default")
    assert "Claude (claude-test)" in cloud and cloud.split()[-3:] == ["1", "5.5", "-"]


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
