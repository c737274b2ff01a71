"""The network goes and comes back; nothing is lost and nothing is done twice."""

from __future__ import annotations

from tests.models import AnthropicService
from tests.serving import provider_for, serving
from tests.shapes import PLAIN_TURN


async def test_the_newer_of_two_sockets_is_served_and_the_older_falls_silent(
    claude: AnthropicService,
) -> None:
    async with serving(provider_for(claude)) as served:
        async with served.phone() as older, served.phone() as newer:
            since = len(older.log)
            await newer.ask("hi")
            assert older.shapes(since) == []
            assert not older.closed.is_set()
            await older.ask("and now me")  # what starts a turn takes the session back
            assert older.shapes(since) == PLAIN_TURN
            mark = len(newer.log)
            await older.ask("once more")
            assert newer.shapes(mark) == []
