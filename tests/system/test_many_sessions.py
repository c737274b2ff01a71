"""Many sessions at once; nothing is left over when they are gone."""

from __future__ import annotations

import asyncio
import gc
import weakref

from tests.models import AnthropicService, Call, Reply, rounds_so_far
from tests.server.wires import until
from tests.serving import provider_for, serving

SESSIONS = 500


async def test_five_hundred_sessions_at_once_leave_nothing_behind(claude: AnthropicService) -> None:
    def reply(request: dict) -> Reply:  # type: ignore[type-arg]  # JSON
        if rounds_so_far(request["messages"]) == 0:
            return Reply(calls=(Call("agent_status", {"id": "a"}),))
        return Reply(text="It runs, and that is all there is to say.")

    claude.default = reply
    before = set(asyncio.all_tasks())
    async with serving(provider_for(claude), session_grace=0.0) as served:
        phones = [served.phone(f"s-{n}", tools={"agent.status": lambda a: "runs"}) for n in range(SESSIONS)]
        for start in range(0, SESSIONS, 50):
            await asyncio.gather(*(phone.open() for phone in phones[start : start + 50]))
        sessions = [weakref.ref(session) for session in served.listener.registry.sessions]
        assert len(sessions) == SESSIONS
        for phone in phones:
            phone.say("how is it?")
        for phone in phones:
            await phone.idle()
            assert phone.finals() == ["It runs, and that is all there is to say."]
            assert phone.errors() == []
            assert len(phone.runs) == 1
        for start in range(0, SESSIONS, 50):
            await asyncio.gather(*(phone.close() for phone in phones[start : start + 50]))
        await until(lambda: not len(served.listener.registry) and not served.listener.connections)
    assert claude.received == 2 * SESSIONS
    assert claude.disconnects == []
    leftovers = {task for task in asyncio.all_tasks() if not task.done()} - before
    assert not leftovers, leftovers
    gc.collect()
    assert not [session for session in sessions if session() is not None]
