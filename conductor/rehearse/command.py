"""``conductor rehearse run`` and ``init``: play rehearsals on a separate server."""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from conductor.app import make_services, running
from conductor.client.connection import ClientError
from conductor.commands.output import private_file, progress, write
from conductor.errors import SettingsError
from conductor.models.metrics import ModelMetrics
from conductor.rehearse.ledger import outcome
from conductor.rehearse.models import judge, make_model, next_words
from conductor.rehearse.player import Backstage, Player, Usage
from conductor.rehearse.report import Performance, pass_rates, write_junit, write_rates, write_report
from conductor.rehearse.script import OWN_SETTINGS, Rehearsal, load
from conductor.settings import load_settings
from conductor.tools.audit import AuditLog

# Seconds for a step.
PATIENCE_S = 60.0


def run(options: argparse.Namespace) -> int:
    """Play the files; returns 1 if an expectation failed, else 0. Raises `SettingsError`."""
    # Errors of tools are scripted.
    logging.getLogger("conductor.client").addHandler(logging.NullHandler())
    if options.runs < 1 or not 0 <= options.threshold <= 1:
        raise SettingsError("--runs must be at least 1, and --threshold from 0 to 1.")
    rehearsals = [(path, load(path)) for path in options.files]
    with progress() as show:
        performances = [
            asyncio.run(_play(path, rehearsal, seed, options, show))
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
    plan = rehearsal.person
    if plan is not None and None in (options.person, options.judge):
        raise SettingsError(f"{path} has a person: --person and --judge must name their models.")
    show(f"{path}: starting the server")
    chance = random.Random(seed)
    try:
        async with AsyncExitStack() as stack:
            judging, person = None, None
            if options.judge is not None:
                judging = make_model(options.judge, load_settings())
                stack.push_async_callback(judging.aclose)
            if plan is not None:
                playing = make_model(options.person, load_settings())
                stack.push_async_callback(playing.aclose)
                person = partial(next_words, plan, provider=playing)
            url, backstage, prompt = await stack.enter_async_context(_serving(rehearsal, options))
            patience_s = options.patience or PATIENCE_S
            player = Player(rehearsal, url, chance, backstage, patience_s=patience_s, person=person)
            scenes = await player.play(lambda number: show(f"{path}, step {number}"))
            if plan is not None or rehearsal.ledger is not None:
                scenes.append(outcome(rehearsal, backstage.ledger))
            if judging is not None:
                calls = [entry for entry in backstage.ledger if entry["event"] == "call"]
                await judge(scenes, judging, calls)
        return Performance(rehearsal.name, str(path), scenes, prompt)
    except (ClientError, SettingsError) as error:
        raise SettingsError(f"{path}: {error}") from None


class _CallLog(AuditLog):
    # The audit log as lists: all entries, and the server's tools that ran.
    def __init__(self, backstage: Backstage) -> None:
        self._backstage = backstage

    def write(self, entry: Mapping[str, Any]) -> None:
        self._backstage.ledger.append(entry)
        if entry["event"] == "call" and entry["source"] != "device":
            self._backstage.calls.append(entry["tool"])


@asynccontextmanager
async def _serving(
    rehearsal: Rehearsal, options: argparse.Namespace
) -> AsyncIterator[tuple[str, Backstage, tuple[str, str]]]:
    # The address, what happens behind it, and the name and version of the system prompt.
    values: dict[str, Any] = OWN_SETTINGS | rehearsal.settings
    # `load_settings` ignores None.
    unset = {name: None for name, value in values.items() if value is None}
    settings = load_settings(**values).model_copy(update=unset)
    model = options.model or rehearsal.model
    provider = None if model is None else make_model(model, settings, rehearsal.replies)
    services = make_services(settings, provider)
    backstage = Backstage(lambda: _usage(services.model_metrics))
    services = replace(services, audit=_CallLog(backstage))
    async with running(settings, services) as listener:
        try:
            # A server does not wait for remote tools, but the first step may need them.
            for toolset in services.toolsets:
                await toolset.ready()
            yield f"ws://127.0.0.1:{listener.port}/ws", backstage, services.observers.prompt
        finally:
            await listener.stop(drain_s=0)  # a failed step may leave a running turn


def _usage(metrics: ModelMetrics) -> Usage:
    totals = metrics.totals
    return Counter(rounds=totals["replies"], input=totals["input"], output=totals["output"])
