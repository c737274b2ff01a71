"""The router: the choice of a profile, its fallbacks and health, and the metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from conductor.errors import ModelError
from conductor.messages import ToolCall, UserMessage
from conductor.models.base import Finished, ModelEvent, ModelProvider, ModelRequest, TextDelta, Usage
from conductor.models.failures import ToolsRefused
from conductor.models.health import MAX_FAILURES, MAX_REST_S, OPEN_S, PROBE_TOOL
from conductor.models.metrics import ModelMetrics
from conductor.models.profiles import ModelProfile, Prices, Profiles
from conductor.models.router import ModelRouter
from tests.models import Script, ScriptedProvider
from tests.session.helpers import later

ASK = ModelRequest("", [UserMessage("Hello")])
TOOLS = replace(ASK, tools=[PROBE_TOOL])
DOWN = [ModelError("connection", "The connection to the model service failed.")]
FAILED = MAX_FAILURES


class Bench:
    """A router over scripted services; ``replies`` has the script of each profile's service."""

    def __init__(self, *profiles: ModelProfile, check_s: float = 0) -> None:
        self.replies: dict[str, Script | Callable[[ModelRequest], Script]] = {
            profile.name: [TextDelta(profile.name)] for profile in profiles
        }
        self.services: dict[str, ScriptedProvider] = {}
        self.metrics = ModelMetrics()
        by_name = {profile.name: profile for profile in profiles}
        listed = Profiles(profiles[0].name, by_name, tuple(by_name)[:2], Path("models.toml"), check_s)
        self.router = ModelRouter(listed, self._service, self._as_text, self.metrics)

    def _service(self, profile: ModelProfile) -> ModelProvider:
        self.services[profile.name] = ScriptedProvider(
            lambda request: self._reply(profile.name, request), name=profile.provider
        )
        return self.services[profile.name]

    def _reply(self, name: str, request: ModelRequest) -> Script:
        reply = self.replies[name]
        return reply(request) if callable(reply) else reply

    def _as_text(self, provider: ModelProvider, profile: ModelProfile) -> ModelProvider:
        self.services[f"{profile.name} as text"] = ScriptedProvider(lambda request: [TextDelta("as text")])
        return self.services[f"{profile.name} as text"]

    async def ask(self, request: ModelRequest = ASK) -> str:
        """Ask the router; gives the text of the reply."""
        return "".join(event.text for event in await self.events(request) if isinstance(event, TextDelta))

    async def events(self, request: ModelRequest = ASK) -> list[ModelEvent]:
        async with aclosing(self.router.stream(request)) as events:
            return [event async for event in events]

    def request_count(self, name: str) -> int:
        """Count the requests that a service got."""
        return len(self.services[name].requests)

    def count(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"conductor_model_{name}_total", labels)


def profile(name: str, *fallback: str, **more: object) -> ModelProfile:
    return ModelProfile.model_validate({"name": name, "provider": "demo", "fallback": fallback, **more})


def home_and_cloud(**more: float) -> Bench:
    return Bench(profile("home", "cloud"), profile("cloud"), **more)


# -- which profile


async def test_the_default_replies_and_signs_its_reply() -> None:
    prices = Prices(input=1, output=5, cache_read=0.5, cache_write=2)
    bench = Bench(profile("home", prices=prices), profile("cloud"))
    bench.replies["home"] = [TextDelta("Hi"), Finished("end_turn", Usage(1000, 2000, 4000, 500))]
    *_, finished = await bench.events()
    assert isinstance(finished, Finished)
    assert (finished.profile, finished.provider, finished.cost) == ("home", "demo", 0.014)
    assert bench.request_count("cloud") == 0


def test_tokens_of_a_cache_without_a_price_cost_as_input() -> None:
    assert Prices(input=2, output=10) == Prices(input=2, output=10, cache_read=2, cache_write=2)
    assert Prices(input=2, cache_read=0).cache_read == 0


async def test_a_session_chooses_an_allowed_profile() -> None:
    bench = Bench(profile("home"), profile("cloud"), profile("secret"))
    assert await bench.ask(replace(ASK, profile="cloud")) == "cloud"
    assert await bench.ask(replace(ASK, profile="secret")) == "home"
    assert [bench.router.serving(name) for name in ("cloud", "secret", None)] == ["cloud", "home", "home"]


async def test_requests_with_and_without_tools_go_to_the_profiles_that_say_so() -> None:
    bench = Bench(profile("any"), profile("small", use="voice"), profile("large", use="tools"))
    assert await bench.ask() == "small"
    assert await bench.ask(TOOLS) == "large"
    assert await bench.ask(replace(TOOLS, tool_choice="none")) == "small"
    assert await bench.ask(replace(TOOLS, profile="any")) == "any"


async def test_a_profile_bounds_the_silence_of_its_service() -> None:
    bench = Bench(profile("home", timeout_s=2))
    await bench.ask()
    assert bench.services["home"].requests[0].silence_s == 2


# -- fallback


async def test_a_reply_longer_than_its_profile_asks_for_is_ended_and_signed() -> None:
    bench = Bench(profile("home", max_tokens=300))
    bench.replies["home"] = [TextDelta("12345")] * 10_000
    *texts, finished = await bench.events()
    assert len(texts) == 300 * 8 // 5 + 1
    assert isinstance(finished, Finished) and (finished.stop, finished.profile) == ("max_tokens", "home")


async def test_a_service_that_is_down_before_the_reply_is_replaced() -> None:
    bench = home_and_cloud()
    bench.replies["home"] = DOWN
    assert await bench.ask() == "cloud"
    home, cloud = (bench.services[name].requests[0] for name in ("home", "cloud"))
    assert not home.may_retry and cloud.may_retry
    assert bench.count("failures", profile="home", reason="connection") == 1


async def test_the_next_try_of_a_reply_that_broke_off_goes_to_another_profile() -> None:
    bench = home_and_cloud()
    bench.replies["home"] = [TextDelta("Half"), *DOWN]
    with pytest.raises(ModelError) as caught:
        await bench.ask()
    assert (caught.value.profile, bench.request_count("cloud")) == ("home", 0)
    assert await bench.ask(replace(ASK, avoid="home")) == "cloud"
    assert bench.request_count("home") == 1
    bench.replies["cloud"], bench.replies["home"] = DOWN, [TextDelta("home")]
    assert await bench.ask(replace(ASK, avoid="home")) == "home"


@pytest.mark.parametrize("before", [[], [TextDelta("Half")]], ids=["silent", "stalled"])
async def test_after_a_timeout_a_profile_is_asked_last_for_a_while(before: list[TextDelta]) -> None:
    bench = home_and_cloud()
    bench.replies["home"] = [*before, ModelError("timeout", "The model service did not answer in time.")]
    with suppress(ModelError):
        await bench.ask()
    await later(OPEN_S - 1)
    assert (await bench.ask(), bench.request_count("home")) == ("cloud", 1)
    bench.replies["home"] = [TextDelta("home")]
    await later(1)
    assert await bench.ask() == "home"


async def test_nothing_goes_where_the_profile_does_not_list_it() -> None:
    bench = Bench(profile("home", "lan"), profile("lan", "cloud"), profile("cloud"))
    bench.replies["home"] = bench.replies["lan"] = DOWN
    with pytest.raises(ModelError, match="connection"):
        await bench.ask()
    assert bench.request_count("cloud") == 0


async def test_a_refusal_is_final() -> None:
    bench = home_and_cloud()
    bench.replies["home"] = [ModelError("refused", "The model service refused the request.")]
    with pytest.raises(ModelError) as caught:
        await bench.ask()
    assert caught.value.reason == "refused" and bench.request_count("cloud") == 0


# -- the circuit breaker


async def test_the_breaker_opens_and_one_request_tries_again() -> None:
    bench = home_and_cloud()
    bench.replies["home"] = DOWN
    for _ in range(FAILED + 2):
        assert await bench.ask() == "cloud"
    assert bench.request_count("home") == FAILED
    assert bench.router.serving(None) == "cloud"
    await later(OPEN_S)
    await asyncio.gather(*(bench.ask() for _ in range(5)))
    assert bench.request_count("home") == FAILED + 1  # half-open: one of them
    await later(OPEN_S)
    bench.replies["home"] = [TextDelta("home")]
    assert [await bench.ask() for _ in range(2)] == ["home", "home"]


async def test_a_cancelled_try_is_followed_by_another() -> None:
    bench = home_and_cloud()
    bench.replies["home"] = DOWN
    for _ in range(FAILED):
        await bench.ask()
    await later(OPEN_S)
    bench.replies["home"] = [TextDelta("home"), asyncio.Event()]
    events = bench.router.stream(ASK)
    await anext(events)
    assert await bench.ask() == "cloud"
    await events.aclose()
    await later(OPEN_S)
    bench.replies["home"] = [TextDelta("home")]
    assert await bench.ask() == "home"


async def test_an_open_breaker_does_not_stop_a_profile_without_a_fallback() -> None:
    bench = Bench(profile("home"))
    bench.replies["home"] = DOWN
    for _ in range(FAILED + 1):
        with pytest.raises(ModelError):
            await bench.ask()
    bench.replies["home"] = [TextDelta("home")]
    assert await bench.ask() == "home"


RESTS: Script = [ModelError("rate_limited", "Too many requests.", retry_after=40.0)]


async def test_a_service_that_rests_gets_no_request_until_its_time() -> None:
    bench = home_and_cloud()
    bench.replies["home"] = RESTS
    assert await bench.ask() == "cloud"
    bench.replies["home"] = [TextDelta("home")]
    await later(39)
    assert (await bench.ask(), bench.request_count("home")) == ("cloud", 1)
    await later(1)
    assert await bench.ask() == "home"


async def test_a_resting_service_without_another_is_not_asked_either() -> None:
    bench = Bench(profile("home"))
    bench.replies["home"] = RESTS
    for wait_s, retry_after in ((0, 40.0), (30, 10.0)):
        await later(wait_s)
        with pytest.raises(ModelError) as caught:
            await bench.ask()
        assert (caught.value.reason, caught.value.retry_after, caught.value.profile) == (
            "rate_limited", retry_after, "home",
        )  # fmt: skip
    assert bench.request_count("home") == 1


async def test_the_last_seconds_of_a_rest_are_waited_for() -> None:
    bench = Bench(profile("home"))
    bench.replies["home"] = RESTS
    with pytest.raises(ModelError):
        await bench.ask()
    bench.replies["home"] = [TextDelta("home")]
    await later(38)
    asked_at = asyncio.get_running_loop().time()
    assert await bench.ask() == "home"
    assert asyncio.get_running_loop().time() - asked_at == pytest.approx(2)


async def test_the_time_to_come_back_is_that_of_the_service_that_is_back_first() -> None:
    bench = home_and_cloud()
    bench.replies["home"] = RESTS
    bench.replies["cloud"] = [ModelError("overloaded", "Overloaded.", retry_after=120.0)]
    for retry_after in (40.0, 30.0):
        with pytest.raises(ModelError) as caught:
            await bench.ask()
        assert caught.value.retry_after == retry_after
        await later(10)


async def test_no_service_rests_for_longer_than_five_minutes() -> None:
    bench = Bench(profile("home"))
    bench.replies["home"] = [ModelError("overloaded", "Come back tomorrow.", retry_after=float("inf"))]
    with pytest.raises(ModelError):
        await bench.ask()
    bench.replies["home"] = [TextDelta("home")]
    await later(MAX_REST_S)
    assert await bench.ask() == "home"


async def test_a_resting_service_is_not_checked() -> None:
    bench = home_and_cloud(check_s=30)
    bench.replies["home"] = RESTS
    await bench.ask()
    bench.replies["home"] = [TextDelta("home")]
    await bench.router.start()
    await later(35)
    assert bench.request_count("home") == 1
    await later(30)
    assert bench.request_count("home") == 2
    await bench.router.aclose()


# -- health


@pytest.mark.parametrize(
    "check", [DOWN, [60.0, TextDelta("late")], [asyncio.Event()]], ids=["dead", "slow", "silent"]
)
async def test_an_unhealthy_service_is_asked_last(check: Script) -> None:
    bench = home_and_cloud(check_s=30)
    bench.replies["home"] = check
    await bench.router.start()
    await later(10)
    checks = bench.request_count("home")
    assert bench.services["home"].requests[0].max_tokens == 1
    assert await bench.ask() == "cloud" and bench.request_count("home") == checks
    bench.replies["home"] = [TextDelta("home")]
    await later(40)
    assert await bench.ask() == "home"
    await bench.router.aclose()


async def test_replies_stand_for_health_checks() -> None:
    bench = home_and_cloud(check_s=30)
    await bench.router.start()
    await later(1)
    pieces: Script = [20.0, TextDelta(".")] * 5
    bench.replies["home"] = [TextDelta("home"), *pieces]
    task = asyncio.create_task(bench.ask())
    await later(100)
    assert bench.request_count("home") == 2  # the first check, and the reply
    assert await task == "home....."
    await bench.router.aclose()


async def test_a_service_that_hangs_in_a_reply_is_checked_and_asked_last() -> None:
    bench = home_and_cloud(check_s=30)
    await bench.router.start()
    await later(1)
    bench.replies["home"] = [TextDelta("home"), asyncio.Event()]
    hanging = asyncio.create_task(bench.ask())
    await later(10)
    bench.replies["home"] = [asyncio.Event()]
    await later(60)
    assert await bench.ask() == "cloud"
    hanging.cancel()
    await bench.router.aclose()


async def test_a_reply_takes_the_place_of_the_next_check() -> None:
    bench = home_and_cloud(check_s=30)
    await bench.router.start()
    await later(10)
    await bench.ask()
    await later(35)
    assert (bench.request_count("home"), bench.request_count("cloud")) == (2, 2)
    await later(25)
    assert (bench.request_count("home"), bench.request_count("cloud")) == (3, 3)
    await bench.router.aclose()


async def test_a_model_without_a_stand_in_is_not_checked() -> None:
    bench = Bench(profile("home"), check_s=30)
    await bench.router.start()
    await later(100)
    assert bench.request_count("home") == 0
    await bench.router.aclose()


# -- auto


CALLS: Script = [ToolCall("c", PROBE_TOOL.name, '{"place":"Berlin"}')]
MALFORMED: Script = [ModelError("malformed", "no call")]
BROKEN: Script = [ToolCall("c", "lamp", '{"on":'), Finished("tool_use")]


@pytest.mark.parametrize(
    ("probe", "reply"),
    [
        (CALLS, "native"),
        ([TextDelta("It is sunny.")], "as text"),
        (BROKEN, "as text"),
        ([ToolsRefused("protocol", "no tools")], "as text"),
        ([ModelError("malformed", "no call")], "as text"),
    ],
    ids=["calls", "talks", "garbles", "refuses", "fails"],
)
async def test_an_auto_model_is_tried_out_once(probe: Script, reply: str) -> None:
    bench = Bench(profile("home", kind="auto"))
    bench.replies["home"] = probe
    await bench.router.start()
    bench.replies["home"] = [TextDelta("native")]
    assert [await bench.ask(), await bench.ask()] == [reply, reply]
    assert bench.request_count("home") == (3 if reply == "native" else 1)


@pytest.mark.parametrize("reason", ["connection", "protocol", "undecodable", "timeout"])
async def test_a_trial_that_fails_tells_nothing_and_the_next_request_tries_again(reason: Any) -> None:
    bench = Bench(profile("home", kind="auto"))
    bench.replies["home"] = [ModelError(reason, "The model service does not know this model or address.")]
    with capture_logs() as lines:
        await bench.router.start()
    assert [(line["event"], line["error"]) for line in lines] == [
        ("model not ready", "The model service does not know this model or address.")
    ]
    with pytest.raises(ModelError):
        await bench.ask(TOOLS)
    bench.replies["home"] = CALLS
    await bench.events(TOOLS)
    assert bench.request_count("home") == 4 and len(bench.services) == 1


@pytest.mark.parametrize(("kind", "reply"), [("auto", "as text"), ("native", "native")])
async def test_an_auto_model_that_garbles_two_replies_writes_text(kind: str, reply: str) -> None:
    bench = Bench(profile("home", kind=kind))
    bench.replies["home"] = CALLS
    await bench.router.start()
    for script in (BROKEN, CALLS, BROKEN):
        bench.replies["home"] = script
        await bench.events(TOOLS)
    assert list(bench.services) == ["home"]
    bench.replies["home"] = MALFORMED
    with suppress(ModelError):
        await bench.events(TOOLS)
    bench.replies["home"] = [TextDelta("native")]
    assert await bench.ask(TOOLS) == reply


async def test_a_model_that_wrote_text_for_ten_minutes_calls_again_until_it_garbles_one() -> None:
    bench = Bench(profile("home", kind="auto"))
    bench.replies["home"] = CALLS
    await bench.router.start()
    bench.replies["home"] = BROKEN
    for _ in range(2):
        await bench.events(TOOLS)
    bench.replies["home"] = CALLS
    assert await bench.ask(TOOLS) == "as text"
    await later(600)
    assert CALLS[0] in await bench.events(TOOLS)
    await later(600)
    bench.replies["home"] = BROKEN
    for _ in range(2):
        await bench.events(TOOLS)
    assert await bench.ask(TOOLS) == "as text"


async def test_a_text_model_is_never_asked_natively() -> None:
    bench = Bench(profile("home", kind="text"))
    assert await bench.ask(TOOLS) == "as text" and bench.request_count("home") == 0


async def test_other_profiles_are_used_from_the_next_request_on() -> None:
    bench = home_and_cloud()
    going_on = asyncio.Event()
    bench.replies["home"] = [TextDelta("home"), going_on, TextDelta(" still")]
    running = asyncio.create_task(bench.ask())
    await bench.services["home"].record(0).started.wait()
    home, cloud = bench.services["home"], bench.services["cloud"]
    changed = {"home": profile("home", model="another"), "cloud": bench.router.profiles.by_name["cloud"]}
    bench.replies["home"] = [TextDelta("new home")]
    bench.router.reload(replace(bench.router.profiles, by_name=changed))
    assert await bench.ask() == "new home"
    assert bench.services["home"] is not home and bench.services["cloud"] is cloud
    going_on.set()
    assert await running == "home still"
    await bench.router.aclose()
