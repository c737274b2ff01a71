"""The part of ``conductor check`` that asks the model for one word."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from urllib.parse import urlsplit

import structlog

from conductor.commands.check_item import Item, fail, ok, warn
from conductor.errors import ModelError, ModelFailure, SettingsError
from conductor.messages import UserMessage
from conductor.models.base import ModelProvider, ModelRequest
from conductor.models.registry import make_provider
from conductor.settings import Settings

log = structlog.get_logger(__name__)

SUBJECT = "model"
CLOSE_S = 2.0


async def model_item(settings: Settings, *, offline: bool, seconds: float) -> Item:
    """Try the provider with a request of one token, or say why not; ``seconds`` bounds all of it."""
    try:
        provider = make_provider(settings.model_copy(update={"anthropic_max_tokens": 1}))
    except SettingsError as error:
        return fail(SUBJECT, str(error))
    except ImportError as error:
        return fail(SUBJECT, f"the package {error.name} is missing, which {settings.provider} needs.")
    if settings.provider == "demo":
        return _demo(settings)
    if settings.provider == "anthropic":
        problem = _anthropic_problem(settings)
        if problem is not None:
            return fail(SUBJECT, problem)
    if offline:
        return ok(SUBJECT, f"{_name(settings)}, not asked (--offline).")
    return await asyncio.create_task(_try(provider, settings, seconds))


async def _try(provider: ModelProvider, settings: Settings, seconds: float) -> Item:
    """Ask, as a task of its own."""
    started = time.monotonic()
    try:
        async with asyncio.timeout(seconds):
            await _ask(provider, seconds)
    except TimeoutError:
        return _failed(settings, ModelError("timeout", "The model service did not answer."), seconds)
    except ModelError as error:
        return _failed(settings, error, seconds)
    except Exception as error:
        log.exception("model provider failed", provider=provider.name)
        return fail(SUBJECT, f"{_name(settings)}: the provider has a bug, {type(error).__name__}; see above.")
    finally:
        await _close(provider)
    return ok(SUBJECT, f"{_name(settings)} answered in {time.monotonic() - started:.1f} s.")


def _demo(settings: Settings) -> Item:
    text = "the demo, a demonstration that knows a few sentences and is no language model"
    if settings.model_provider is None:
        return warn(SUBJECT, f"{text}; set ANTHROPIC_API_KEY for Claude.")
    return ok(SUBJECT, f"{text}.")


async def _ask(provider: ModelProvider, seconds: float) -> None:
    await provider.start()
    request = ModelRequest("", [UserMessage("Hello")], silence_s=seconds, deadline_s=seconds)
    async with aclosing(provider.stream(request)) as stream:
        async for _ in stream:
            pass


async def _close(provider: ModelProvider) -> None:
    try:
        async with asyncio.timeout(CLOSE_S):
            await provider.aclose()
    except TimeoutError:
        pass  # the process is about to end


def _anthropic_problem(settings: Settings) -> str | None:
    """Find what the SDK would report as a lost connection, although no request was made."""
    key = settings.anthropic_api_key.get_secret_value() if settings.anthropic_api_key else ""
    if not (key.isascii() and key.isprintable()) or " " in key or key[:1] in "'\"":
        return "ANTHROPIC_API_KEY holds spaces, quotes or other characters that no key has."
    if settings.anthropic_base_url is None:
        return None
    try:
        url = urlsplit(settings.anthropic_base_url)
        good = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # a port or an IPv6 address that is none
        good = False
    if not good:
        return "ANTHROPIC_BASE_URL is no address: it must begin with https:// or http:// and a host."
    if url.username is not None or url.password is not None:
        return "ANTHROPIC_BASE_URL must hold no user name and no password."
    if url.path.rstrip("/").endswith("/v1"):
        return "ANTHROPIC_BASE_URL must not end in /v1: that is added."
    return None


def _name(settings: Settings) -> str:
    return f"Claude ({settings.anthropic_model})" if settings.provider == "anthropic" else settings.provider


_CLAUDE_MENDS: dict[ModelFailure, str] = {
    "authentication": "Look at ANTHROPIC_API_KEY, and whether its account may use {model}.",
    "protocol": "Look at ANTHROPIC_MODEL ({model}), and at ANTHROPIC_BASE_URL if it is set.",
    "connection": "Asked was {host}: look at the network, at proxies, and at ANTHROPIC_BASE_URL if set.",
    "timeout": "Nothing came from {host} within {seconds:g} s: look at the network, and try again.",
    "overloaded": "Try again later; the settings may be right.",
    "rate_limited": "The key was accepted; wait, or raise the account's limits.",
}


def _failed(settings: Settings, error: ModelError, seconds: float) -> Item:
    """Say what failed, and how to mend it. Nothing of an address but its host is shown: it may hold a key."""
    text = f"{_name(settings)}: {error}"
    if settings.provider == "anthropic" and error.reason in _CLAUDE_MENDS:
        host = urlsplit(settings.anthropic_base_url or "//api.anthropic.com").hostname
        mend = _CLAUDE_MENDS[error.reason]
        text += " " + mend.format(model=settings.anthropic_model, host=host, seconds=seconds)
    return warn(SUBJECT, text) if error.reason == "rate_limited" else fail(SUBJECT, text)
