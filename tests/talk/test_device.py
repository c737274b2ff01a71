"""The simulated device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from conductor.talk.device import REPOSITORIES, SimulatedDevice


async def first(_question: str, names: Sequence[str]) -> str | None:
    return names[0]


class Tools:
    """Calls the device's handlers by name."""

    def __init__(self) -> None:
        self.device = SimulatedDevice(first)

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        result = self.device.handlers()[name](arguments)
        assert result["simulated"] is True
        return dict(result)


def test_a_spawned_agent_can_be_looked_up_listed_and_cancelled() -> None:
    tools = Tools()
    spawned = tools.call("agent.spawn", prompt="Fix the build", repository="acme/website")["agent"]
    assert spawned["status"] == "RUNNING"
    assert tools.call("agent.status", id=spawned["id"])["agent"] == spawned
    assert tools.call("agent.list")["agents"] == [spawned]
    assert tools.call("agent.cancel", id=spawned["id"])["agent"]["status"] == "CANCELLED"
    assert tools.call("agent.list")["agents"][0]["status"] == "CANCELLED"


def test_a_follow_up_restarts_a_finished_agent() -> None:
    tools = Tools()
    agent = tools.call("agent.spawn", prompt="Fix the build", prUrl="https://x/pull/1")["agent"]
    tools.device.finish()
    assert tools.call("agent.status", id=agent["id"])["agent"]["status"] == "FINISHED"
    followed = tools.call("agent.followup", id=agent["id"], prompt="And the tests")["agent"]
    assert (followed["prompts"], followed["status"]) == (["Fix the build", "And the tests"], "RUNNING")


def test_agents_are_listed_newest_first_and_in_pages() -> None:
    tools = Tools()
    for number in range(5):
        tools.call("agent.spawn", prompt=f"Task {number}", prUrl=f"https://x/pull/{number % 2}")
    names: list[str] = []
    cursor: str | None = None
    while True:
        page = tools.call("agent.list", limit=2, **({"cursor": cursor} if cursor else {}))
        names += [agent["name"] for agent in page["agents"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert names == ["Task 4", "Task 3", "Task 2", "Task 1", "Task 0"]
    assert len(tools.call("agent.list", prUrl="https://x/pull/1")["agents"]) == 2


def test_a_finished_agent_is_not_cancelled() -> None:
    tools = Tools()
    agent = tools.call("agent.spawn", prompt="Fix the build", repository="acme/website")["agent"]
    tools.device.finish(agent["id"])
    assert tools.call("agent.cancel", id=agent["id"])["agent"]["status"] == "FINISHED"


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("agent.status", {"id": "nobody"}, LookupError),
        ("agent.cancel", {}, ValueError),
        ("agent.followup", {"id": "nobody", "prompt": "x"}, LookupError),
        ("agent.spawn", {"prompt": " ", "repository": "acme/website"}, ValueError),
        ("agent.spawn", {"prompt": "Fix it"}, ValueError),
    ],
)
def test_invalid_arguments_are_errors(name: str, arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Tools().call(name, **arguments)


def test_without_a_running_agent_finish_is_an_error() -> None:
    with pytest.raises(LookupError):
        SimulatedDevice(first).finish()


async def test_a_repository_is_chosen_among_the_matches() -> None:
    tools = Tools()
    assert tools.call("repositories.list")["repositories"] == list(REPOSITORIES)
    select = tools.device.handlers()["repositories.select"]
    assert await select({"filter": "Hello octo"}) == {
        "simulated": True,
        "repository": "https://github.com/octocat/hello-world",
    }
    with pytest.raises(LookupError):
        await select({"filter": "nothing such"})
