"""A simulated device with agents and repositories in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from conductor.client.calls import ToolHandler

Choose: TypeAlias = Callable[[str, Sequence[str]], Awaitable[str | None]]
"""Asks the person to choose one of several names; None without a choice."""

_HOST = "https://github.com/"
REPOSITORIES = tuple(
    _HOST + name for name in ("acme/website", "acme/mobile-app", "acme/payments", "octocat/hello-world")
)
# Agents on a page by default.
DEFAULT_LIMIT = 20
# Characters of an agent's name, the beginning of its task.
MAX_NAME = 40


class SimulatedDevice:
    """The app's tools with a simulated state. Every result has ``"simulated": true``.

    Agents run until they are cancelled or `finish`ed. A `LookupError` or `ValueError` becomes a call's error.
    """

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self._agents: dict[str, dict[str, Any]] = {}  # oldest first

    def handlers(self) -> dict[str, ToolHandler]:
        """Return the handlers by tool name, for `connect`."""
        return {
            "agent.spawn": self._spawn,
            "agent.status": lambda arguments: _simulated(agent=self._find(arguments)),
            "agent.cancel": self._cancel,
            "agent.followup": self._follow_up,
            "agent.list": self._list_agents,
            "repositories.list": lambda _: _simulated(repositories=list(REPOSITORIES)),
            "repositories.select": self._select_repository,
        }

    def finish(self, agent_id: str | None = None) -> dict[str, Any]:
        """Finish the agent with this id, or the newest running one; return it. Raises `LookupError`."""
        if agent_id is None:
            running = [agent["id"] for agent in self._agents.values() if agent["status"] == "RUNNING"]
            if not running:
                raise LookupError("no agent is running")
            agent_id = running[-1]
        agent = self._find({"id": agent_id})
        agent["status"] = "FINISHED"
        return agent

    def _spawn(self, arguments: dict[str, Any]) -> dict[str, Any]:
        prompt = _text(arguments, "prompt")
        repository, pr_url = arguments.get("repository"), arguments.get("prUrl")
        if not repository and not pr_url:
            raise ValueError("repository or prUrl is required")
        name = " ".join(prompt.split())
        agent: dict[str, Any] = {
            "id": f"sim-agent-{len(self._agents) + 1}",
            "name": name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…",
            "status": "RUNNING",
            "repository": repository,
            "prUrl": pr_url,
            "prompts": [prompt],
        }
        self._agents[agent["id"]] = agent
        return _simulated(agent=agent)

    def _cancel(self, arguments: dict[str, Any]) -> dict[str, Any]:
        agent = self._find(arguments)
        if agent["status"] == "RUNNING":
            agent["status"] = "CANCELLED"
        return _simulated(agent=agent)

    def _follow_up(self, arguments: dict[str, Any]) -> dict[str, Any]:
        agent = self._find(arguments)
        agent["prompts"].append(_text(arguments, "prompt"))
        agent["status"] = "RUNNING"
        return _simulated(agent=agent)

    def _list_agents(self, arguments: dict[str, Any]) -> dict[str, Any]:
        agents = list(reversed(self._agents.values()))
        if pr_url := arguments.get("prUrl"):
            agents = [agent for agent in agents if agent["prUrl"] == pr_url]
        start = int(arguments.get("cursor") or 0)
        end = start + int(arguments.get("limit") or DEFAULT_LIMIT)
        return _simulated(agents=agents[start:end], cursor=str(end) if end < len(agents) else None)

    async def _select_repository(self, arguments: dict[str, Any]) -> dict[str, Any]:
        words = str(arguments.get("filter") or "").lower().split()
        names = [url.removeprefix(_HOST) for url in REPOSITORIES]
        matches = [name for name in names if all(word in name for word in words)]
        if not matches:
            raise LookupError("no repository matches the filter")
        name = await self._choose(str(arguments.get("prompt") or "Which repository?"), matches)
        if name is None:
            raise LookupError("no repository was chosen")
        return _simulated(repository=_HOST + name)

    def _find(self, arguments: dict[str, Any]) -> dict[str, Any]:
        agent = self._agents.get(_text(arguments, "id"))
        if agent is None:
            raise LookupError("there is no such agent; simulated agents end with their terminal")
        return agent


def _simulated(**data: Any) -> dict[str, Any]:
    return {"simulated": True, **data}


def _text(arguments: dict[str, Any], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} must be a text")
    return value
