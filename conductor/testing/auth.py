"""What an authenticator of any package has to pass; docs/plugins.md shows its use."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs
from websockets.datastructures import Headers

from conductor.server.auth import Authenticator, Handshake

SECONDS = 60.0
JUNK = (
    Handshake("/ws", Headers()),
    Handshake("/ws?token=", Headers()),
    Handshake("/ws?token=%ff%fe%00", Headers()),
    Handshake("/ws", Headers(Authorization="Bearer " + "x" * 8_000)),
    Handshake("/ws", Headers(Authorization="Basic dTpw")),
    Handshake("/ws", Headers([("Authorization", "Bearer a"), ("Authorization", "Bearer b")])),
    Handshake("//[", Headers({"Sec-WebSocket-Protocol": "bearer."})),
)


class AuthContract:
    """Subclass it, and give the authenticator and handshakes."""

    @pytest.fixture
    def authenticator(self) -> Authenticator:
        """Make the authenticator, which wants a proof."""
        raise NotImplementedError

    @pytest.fixture
    def admitted(self) -> Sequence[Handshake]:
        """Return handshakes of different persons."""
        raise NotImplementedError

    @pytest.fixture
    def refused(self) -> Sequence[Handshake]:
        """Return handshakes that prove nothing."""
        raise NotImplementedError

    async def person(self, authenticator: Authenticator, handshake: Handshake) -> str | None:
        """Name the person of a handshake, at most within `SECONDS`."""
        async with asyncio.timeout(SECONDS):
            principal = await authenticator.authenticate(handshake)
        return None if principal is None else principal.id

    async def test_each_person_has_an_id_of_their_own(
        self, authenticator: Authenticator, admitted: Sequence[Handshake]
    ) -> None:
        first = [await self.person(authenticator, handshake) for handshake in admitted]
        repeated = [await self.person(authenticator, handshake) for handshake in admitted]
        assert first == repeated and None not in first and len(set(first)) == len(first)
        for person in first:
            assert person and person.isprintable() and len(person) <= 200 and not person.startswith("$")

    async def test_others_are_refused(
        self, authenticator: Authenticator, refused: Sequence[Handshake]
    ) -> None:
        assert authenticator.required
        for handshake in (*JUNK, *refused):
            assert await self.person(authenticator, handshake) is None, handshake

    async def test_tokens_stay_out_of_logs_and_ids(
        self, authenticator: Authenticator, admitted: Sequence[Handshake], refused: Sequence[Handshake]
    ) -> None:
        with capture_logs() as lines:
            persons = [await self.person(authenticator, handshake) for handshake in (*admitted, *refused)]
        for handshake in (*admitted, *refused):
            assert not handshake.token or handshake.token not in f"{lines} {persons}"

    async def test_many_at_once(self, authenticator: Authenticator, admitted: Sequence[Handshake]) -> None:
        handshakes = [*admitted, *JUNK] * 20
        persons = await asyncio.gather(*(self.person(authenticator, handshake) for handshake in handshakes))
        assert persons == [await self.person(authenticator, handshake) for handshake in handshakes]
