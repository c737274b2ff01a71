"""``conductor check``: tries everything that the server needs, without serving."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from conductor.commands.check_item import Item, fail

MODEL_TIMEOUT_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options; those named as of ``serve`` do the same."""
    parser.add_argument("--host", help="address to listen on (HOST)")
    parser.add_argument("--port", type=int, help="port to listen on (PORT)")
    parser.add_argument("--provider", dest="model_provider", help="model provider (MODEL_PROVIDER)")
    parser.add_argument("--model", dest="anthropic_model", help="Claude model (ANTHROPIC_MODEL)")
    parser.add_argument("--offline", action="store_true", help="do not ask the model")
    parser.add_argument(
        "--insecure-no-auth", action="store_true", help="listen to other machines without AUTH_TOKENS"
    )


def run(options: argparse.Namespace, stdout: TextIO | None = None) -> int:
    """Check, and print a line an item; returns the exit code, 0 or 2."""
    from conductor.logs import configure_logs

    configure_logs("error", "console", cache=False)
    names = ("host", "port", "model_provider", "anthropic_model")
    overrides = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    items = check(overrides=overrides, offline=options.offline, insecure=options.insecure_no_auth)
    return asyncio.run(report(items, stdout or sys.stdout))


async def report(items: AsyncIterator[Item], out: TextIO) -> int:
    """Write each item as it comes, then a summary; returns 2 if one failed, else 0."""
    counts = {"ok": 0, "warn": 0, "fail": 0}
    async for item in items:
        counts[item.level] += 1
        out.write(f"{item}\n")
        out.flush()
    warnings = "1 warning" if counts["warn"] == 1 else f"{counts['warn']} warnings"
    out.write(f"\n{counts['ok']} ok, {warnings}, {counts['fail']} failed\n")
    return 2 if counts["fail"] else 0


async def check(
    env_file: Path | None = Path(".env"),
    *,
    overrides: Mapping[str, Any] | None = None,
    offline: bool = False,
    insecure: bool = False,
    model_timeout_s: float = MODEL_TIMEOUT_S,
) -> AsyncIterator[Item]:
    """Look at one thing after the other.

    ``overrides`` are settings that win over the environment and ``env_file``. ``offline`` leaves the model
    service alone, ``insecure`` permits strangers without tokens. What rests on a setting that is not valid is
    left out.
    """
    from conductor.commands.check_model import model_item
    from conductor.commands.check_server import access_items, address_item, catalog_items, prompt_item
    from conductor.commands.check_settings import read_settings, settings_items
    from conductor.commands.check_store import STORE_SETTINGS, store_items

    try:
        found = read_settings(env_file, overrides or {})
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        yield fail("settings", f"the file {env_file} cannot be read: {reason}.")
        return
    for item in settings_items(env_file, found):
        yield item
    settings, invalid = found.settings, set(found.invalid)
    if "system_prompt_file" not in invalid:
        yield prompt_item(settings.system_prompt_file)
    if "device_tools_file" not in invalid:
        for item in catalog_items(settings.device_tools_file):
            yield item
    if not invalid & {"host", "port"}:
        yield await address_item(settings.host, settings.port)
    if not invalid & {"host", "auth_tokens"}:
        for item in access_items(settings, insecure):
            yield item
    if not invalid & STORE_SETTINGS:
        async for item in store_items(settings):
            yield item
    if not any(name.startswith(("anthropic_", "model_provider")) for name in invalid):
        yield await model_item(settings, offline=offline, seconds=model_timeout_s)
