"""``conductor rehearse run`` and ``init``: play rehearsals on a server of their own or a running one."""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from conductor.app import make_services, running
from conductor.client.connection import ClientError
from conductor.commands.output import private_file, write
from conductor.errors import ModelError, SettingsError
from conductor.events.envelope import new_call_id
from conductor.messages import ToolCall, UserMessage
from conductor.models.base import Finished, ModelEvent, ModelProvider, ModelRequest, TextDelta
from conductor.models.metrics import ModelMetrics
from conductor.models.profiles import Profiles, load_profiles
from conductor.models.registry import make_router
from conductor.rehearse.player import Backstage, Player, Scene, Usage
from conductor.rehearse.report import Performance, pass_rates, write_junit, write_rates, write_report
from conductor.rehearse.script import OWN_SETTINGS, SCRIPTED, Rehearsal, Reply, load
from conductor.settings import Settings, load_settings
from conductor.tools.audit import AuditLog

# Seconds between two words of a scripted reply, so that an interruption or a cut falls within it.
WORD_S = 0.003
# Seconds for a step.
PATIENCE_S = 60.0
_JUDGE = "You judge a part of a conversation. Answer the question about it with yes or no, and nothing else."


def run(options: argparse.Namespace) -> int:
    """Play the files; returns 1 if an expectation failed, else 0. Raises `SettingsError`."""
    # Errors of tools are scripted.
    logging.getLogger("conductor.client").addHandler(logging.NullHandler())
    if options.url is not None and options.model is not None:
        raise SettingsError("--model cannot be used with --url: the running server has its own model.")
    if options.runs < 1 or not 0 <= options.threshold <= 1:
        raise SettingsError("--runs must be at least 1, and --threshold from 0 to 1.")
    rehearsals = [(path, load(path)) for path in options.files]
    # On stderr, so that a pipe receives only the table.
    with Console(stderr=True).status("") as status:
        performances = [
            asyncio.run(_play(path, rehearsal, seed, options, lambda text: status.update(Text(text))))
            for path, rehearsal in rehearsals
            for seed in range(options.seed, options.seed + options.runs)
        ]
    rates = pass_rates(performances)
    if options.runs == 1:
        write_report(performances)
    else:
        write_rates(performances)
    if options.junit is not None:
        try:
            with options.junit.open("wb") as file:
                write_junit(file, performances)
        except OSError as error:
            raise SettingsError(f"{options.junit} cannot be written: {error.strerror}.") from None
    return 1 if min(rates.values()) < options.threshold else 0


def init(options: argparse.Namespace) -> None:
    """Write a first rehearsal. Raises `SettingsError` for an existing file, unless ``force``."""
    text = Path(__file__).with_name("first.yaml").read_text(encoding="utf-8")
    with private_file(options.file, replace=options.force) as file:
        file.write(text)
    write(f"{options.file} written. Play it: conductor rehearse run {options.file}")


async def _play(
    path: Path, rehearsal: Rehearsal, seed: int, options: argparse.Namespace, show: Callable[[str], None]
) -> Performance:
    def begins(number: int) -> None:
        show(f"{path}, step {number} of {len(rehearsal.steps)}: {ascii(rehearsal.steps[number - 1].say)}")

    show(f"{path}: starting the server")
    chance = random.Random(seed)
    try:
        async with _serving(rehearsal, options) as (url, backstage):
            player = Player(rehearsal, url, options.token, chance, backstage, options.patience or PATIENCE_S)
            scenes = await player.play(begins)
        if options.judge is not None:
            settings = load_settings()
            provider = make_router(_profiles(options.judge, settings), settings, ModelMetrics())
            try:
                await judge(scenes, provider)
            finally:
                await provider.aclose()
        return Performance(rehearsal.name, str(path), scenes)
    except (ClientError, SettingsError) as error:
        raise SettingsError(f"{path}: {error}") from None


class _CallLog(AuditLog):
    # The audit log as a list of the server's tools that ran.
    def __init__(self, names: list[str]) -> None:
        self._names = names

    def write(self, entry: Mapping[str, Any]) -> None:
        if entry["event"] == "call" and entry["source"] != "device":
            self._names.append(entry["tool"])


@asynccontextmanager
async def _serving(
    rehearsal: Rehearsal, options: argparse.Namespace
) -> AsyncIterator[tuple[str, Backstage | None]]:
    if options.url is not None:
        yield options.url, None
        return
    values: dict[str, Any] = OWN_SETTINGS | rehearsal.settings
    # `load_settings` ignores None.
    unset = {name: None for name, value in values.items() if value is None}
    settings = load_settings(**values).model_copy(update=unset)
    services = make_services(settings, _provider(rehearsal, options.model or rehearsal.model, settings))
    backstage = Backstage(lambda: _usage(services.model_metrics))
    services = replace(services, audit=_CallLog(backstage.calls))
    async with running(settings, services) as listener:
        try:
            # A server does not wait for remote tools, but the first step may need them.
            for toolset in services.toolsets:
                await toolset.ready()
            yield f"ws://127.0.0.1:{listener.port}/ws", backstage
        finally:
            await listener.stop(drain_s=0)  # a failed step may leave a running turn


def _provider(rehearsal: Rehearsal, model: str | None, settings: Settings) -> ModelProvider | None:
    if model == SCRIPTED:
        return _ScriptedModel(rehearsal.replies)
    if model is None:
        return None
    return make_router(_profiles(model, settings), settings, ModelMetrics())


def _profiles(model: str, settings: Settings) -> Profiles:
    profiles = load_profiles(settings.model_copy(update={"model_provider": None})).by_name
    if model in profiles:
        # Without fallbacks, which would hide its failures.
        profile = profiles[model].model_copy(update={"fallback": (), "use": None})
        return Profiles(model, {model: profile})
    provider, _, name = model.partition(":")
    update = {"model_provider": provider.lower()} | ({f"{provider.lower()}_model": name} if name else {})
    return load_profiles(settings.model_copy(update=update))


class _ScriptedModel:
    # Plays the replies of a rehearsal, one a request.
    name = SCRIPTED

    def __init__(self, replies: Sequence[Reply]) -> None:
        self._replies = iter(replies)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        reply = next(self._replies, None)
        if reply is None:
            raise ModelError("protocol", "The script has no reply left.")
        await asyncio.sleep(reply.after)
        for word in re.findall(r"\s*\S+\s*", reply.say):
            yield TextDelta(word)
            await asyncio.sleep(WORD_S)
        for call in reply.calls:
            yield ToolCall(new_call_id(), call.tool, msgspec.json.encode(call.arguments).decode())
        if reply.error is not None:
            raise ModelError(reply.error, "The rehearsal's model fails here.")
        yield Finished("tool_use" if reply.calls else "end_turn")

    async def start(self) -> None:
        pass

    async def aclose(self) -> None:
        pass


async def judge(scenes: Sequence[Scene], provider: ModelProvider) -> None:
    """Put the steps' questions to a model, and record its verdicts. Raises `SettingsError` if it fails."""
    for scene in scenes:
        question = scene.step.expect.judge
        if question is None or not scene.reached:
            continue
        dialogue = f"Person: {scene.step.say}\nAssistant: {' '.join(scene.speeches)}"
        request = ModelRequest(_JUDGE, [UserMessage(f"{dialogue}\n\n{question}")])
        try:
            async with aclosing(provider.stream(request)) as events:
                texts = [event.text async for event in events if isinstance(event, TextDelta)]
        except ModelError as error:
            raise SettingsError(f"the judge failed: {error}") from None
        scene.verdict = "".join(texts)


def _usage(metrics: ModelMetrics) -> Usage:
    totals = metrics.totals
    return Counter(rounds=totals["replies"], input=totals["input"], output=totals["output"])
