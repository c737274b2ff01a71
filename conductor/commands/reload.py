"""Changes of a running server: SIGHUP, and an edited file of rules."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from conductor.app import make_authenticator
from conductor.commands.policy_lint import lint, lint_allowed
from conductor.errors import SettingsError
from conductor.models.profiles import load_profiles
from conductor.models.router import ModelRouter
from conductor.prompts import identify, load_system_prompt
from conductor.server.address import check_exposure
from conductor.server.listener import Listener
from conductor.session.services import Services
from conductor.settings import Settings
from conductor.tools.declarations import load_catalog
from conductor.tools.policies import REREAD_S
from conductor.tools.rules import Rule
from conductor.tools.toolsets import all_tools, make_redactor, make_toolsets

log = structlog.get_logger(__name__)


# The settings that a running server takes from an edited ``.env``; the others keep the values of its start.
RELOADED = ("auth", "auth_tokens", "admin_token", "api_keys")


def reload(
    settings: Settings, services: Services, listener: Listener, read: Callable[[], Settings] | None = None
) -> Settings:
    """Reload the tokens, the prompt, the catalog, the rules, the models, the HTTP tools and the MCP servers.

    ``read`` reads ``.env`` again. Returns the settings in force. A mistake is logged and changes nothing.
    """
    former, before = settings, listener.services
    profiles = before.provider.profiles if isinstance(before.provider, ModelRouter) else None
    try:
        edited = settings if read is None else read()
        settings = settings.model_copy(update={name: getattr(edited, name) for name in RELOADED})
        if former.authenticates:
            check_exposure(settings, insecure=False)
        endpoint_changes = listener.prepare(settings)
        authenticator = make_authenticator(settings, services.store)
        after = _reload_services(settings, services)
    except SettingsError as error:
        log.error("reload failed", reason=str(error))
        return former
    if former.authenticates and not settings.authenticates:
        log.warning("no token is needed any more: every client of this machine may connect")
    listener.reload(after)
    for change in endpoint_changes:
        change()
    closed = listener.authenticate(authenticator)
    tokens, old_tokens = set(settings.auth_tokens), set(former.auth_tokens)
    changes = {
        "tokens": tokens != old_tokens,
        "AUTH": settings.auth != former.auth,
        "ADMIN_TOKEN": settings.admin_token != former.admin_token,
        "API_KEYS": settings.api_keys != former.api_keys,
        "prompt": after.system_prompt != before.system_prompt,
        "catalog": after.catalog != before.catalog,
        "rules": after.policies != before.policies,
        "models": isinstance(after.provider, ModelRouter) and after.provider.profiles != profiles,
        "tools": _fingerprints(after) != _fingerprints(before),
    }
    log.info(
        "reloaded",
        changed=[name for name, has_changed in changes.items() if has_changed],
        tokens_added=len(tokens - old_tokens),
        tokens_removed=len(old_tokens - tokens),
        connections_closed=closed,
        sessions=len(listener.registry),
        needs_restart=[
            name.upper()
            for name in Settings.model_fields
            if name not in RELOADED and getattr(edited, name) != getattr(former, name)
        ],
    )
    return settings


def _reload_services(settings: Settings, services: Services) -> Services:
    services = replace(
        services,
        catalog=load_catalog(settings.device_tools_file),
        system_prompt=load_system_prompt(settings.system_prompt_file),
    )
    toolsets = make_toolsets(settings)
    if services.policy_file is not None:
        services.policy_file.refresh()
        if services.policy_file.problem:
            raise SettingsError(services.policy_file.problem)
        services = replace(services, policies=services.policy_file.policies)
    if isinstance(services.provider, ModelRouter):
        services.provider.reload(load_profiles(settings))
    redactor = make_redactor(settings, toolsets)
    pairs = zip(services.toolsets, toolsets, strict=True)
    toolsets = [toolset.reload(new) for toolset, new in pairs]
    services.observers.prompt = identify(settings.system_prompt_file, services.system_prompt)
    return replace(services, toolsets=toolsets, redactor=redactor)


def _fingerprints(services: Services) -> list[str]:
    return [spec.fingerprint for toolset in services.toolsets for spec in toolset.specs()]


async def watch_policies(settings: Settings, listener: Listener, every: float = REREAD_S) -> None:
    """Reload the operator's rules when their file changes, and log lint findings.

    Checks every ``every`` seconds; never returns.
    """
    file, checked = listener.services.policy_file, None
    while file is not None:
        # In a thread: a network folder may hang.
        await asyncio.to_thread(file.refresh)
        policies = file.policies
        if policies is not listener.services.policies:
            listener.reload(replace(listener.services, policies=policies))
            log.info("policies reloaded", rules=len(policies.rules), preset=policies.preset)
        if policies is not checked:
            checked = policies
            for finding in await asyncio.to_thread(_lint, settings, policies.rules):
                log.warning("policy finding", finding=finding)
        await asyncio.sleep(every)


def _lint(settings: Settings, rules: Sequence[Rule]) -> list[str]:
    try:
        tools = all_tools(settings)
    except SettingsError:  # `reload` reports an invalid catalog
        return []
    allowed = [f"ALLOWED_TOOLS {finding}." for finding in lint_allowed(settings.allowed_tools, tools)]
    return [*lint(rules, tools, now=time.time()), *allowed]
