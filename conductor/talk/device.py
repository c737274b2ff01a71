"""A simulated device: agents and repositories that exist only in memory, and say so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from conductor.client.calls import ToolHandler

Choose: TypeAlias = Callable[[str, Sequence[str]], Awaitable[str | None]]
"""Asks the person to choose one of several names; None if none was chosen."""

_HOST = "https://github.com/"
REPOSITORIES = tuple(
    _HOST + name for name in ("acme/website", "acme/mobile-app", "acme/payments", "octocat/hello-world")
)
# Agents on a page when the call names no limit.
DEFAULT_LIMIT = 20


@dataclass(frozen=True, slots=True)
class Agent:
    """One simulated coding agent; ``prompts`` are the task and its follow-ups."""

    id: str
    repository: str | None
    pr_url: str | None
    prompts: tuple[str, ...]
    status: Literal["RUNNING", "CANCELLED", "FINISHED"] = "RUNNING"

    @property
    def name(self) -> str:
        """A short title: the task's beginning."""
        task = " ".join(self.prompts[0].split())
        return task if len(task) <= 40 else f"{task[:39]}…"

    def shown(self) -> dict[str, Any]:
        """Give the agent in the form of a tool's result."""
        return {
            "id": self.id,
            "name": self.name,
            "status": self.status,
            "repository": self.repository,
            "prUrl": self.pr_url,
            "prompts": list(self.prompts),
        }


class SimulatedDevice:
    """The app's tools with a state of their own. Every result has ``"simulated": true``.

    Agents run until they are cancelled or `finish`ed. A `LookupError` or `ValueError` (an unknown agent, say)
    becomes the call's error.
    """

    def __init__(self, choose: Choose, repositories: Sequence[str] = REPOSITORIES) -> None:
        self._choose = choose
        self._repositories = tuple(repositories)
        self._agents: dict[str, Agent] = {}  # oldest first

    def handlers(self) -> dict[str, ToolHandler]:
        """Give the handlers by tool name, for `connect`."""
        return {
            "agent.spawn": self._spawn,
            "agent.status": self._status,
            "agent.cancel": self._cancel,
            "agent.followup": self._follow_up,
            "agent.list": self._list_agents,
            "repositories.list": self._list_repositories,
            "repositories.select": self._select_repository,
        }

    def finish(self, agent_id: str | None = None) -> Agent:
        """Finish the agent with this id, or the newest that runs. Raises `LookupError`."""
        if agent_id is None:
            running = [agent for agent in self._agents.values() if agent.status == "RUNNING"]
            if not running:
                raise LookupError("no agent is running")
            agent_id = running[-1].id
        return self._keep(replace(self._find({"id": agent_id}), status="FINISHED"))

    def _spawn(self, arguments: dict[str, Any]) -> dict[str, Any]:
        prompt = _text(arguments, "prompt")
        repository, pr_url = arguments.get("repository"), arguments.get("prUrl")
        if not repository and not pr_url:
            raise ValueError("repository or prUrl is needed")
        agent = Agent(f"sim-agent-{len(self._agents) + 1}", repository, pr_url, (prompt,))
        return _simulated(agent=self._keep(agent).shown())

    def _status(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return _simulated(agent=self._find(arguments).shown())

    def _cancel(self, arguments: dict[str, Any]) -> dict[str, Any]:
        agent = self._find(arguments)
        if agent.status == "RUNNING":
            agent = self._keep(replace(agent, status="CANCELLED"))
        return _simulated(agent=agent.shown())

    def _follow_up(self, arguments: dict[str, Any]) -> dict[str, Any]:
        agent = self._find(arguments)
        prompts = (*agent.prompts, _text(arguments, "prompt"))
        return _simulated(agent=self._keep(replace(agent, prompts=prompts, status="RUNNING")).shown())

    def _list_agents(self, arguments: dict[str, Any]) -> dict[str, Any]:
        agents = list(reversed(self._agents.values()))
        if pr_url := arguments.get("prUrl"):
            agents = [agent for agent in agents if agent.pr_url == pr_url]
        limit = arguments.get("limit") or DEFAULT_LIMIT
        first = int(arguments.get("cursor") or 0)
        page = agents[first : first + int(limit)]
        rest = first + len(page)
        return _simulated(
            agents=[agent.shown() for agent in page], cursor=str(rest) if rest < len(agents) else None
        )

    def _list_repositories(self, _arguments: dict[str, Any]) -> dict[str, Any]:
        return _simulated(repositories=list(self._repositories))

    async def _select_repository(self, arguments: dict[str, Any]) -> dict[str, Any]:
        words = str(arguments.get("filter") or "").lower().split()
        names = {url.removeprefix(_HOST): url for url in self._repositories}
        found = [name for name in names if all(word in name.lower() for word in words)]
        if not found:
            raise LookupError("no repository matches that filter")
        chosen = await self._choose(str(arguments.get("prompt") or "Which repository?"), found)
        if chosen is None:
            raise LookupError("no repository was chosen")
        return _simulated(repository=names.get(chosen, chosen))

    def _find(self, arguments: dict[str, Any]) -> Agent:
        agent = self._agents.get(_text(arguments, "id"))
        if agent is None:
            raise LookupError(
                "this simulated device has no such agent; they end with the terminal that started them"
            )
        return agent

    def _keep(self, agent: Agent) -> Agent:
        self._agents[agent.id] = agent
        return agent


def _simulated(**data: Any) -> dict[str, Any]:
    return {"simulated": True, **data}


def _text(arguments: dict[str, Any], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} must be a text")
    return value
