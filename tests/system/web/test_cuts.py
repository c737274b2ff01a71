"""The JavaScript library in a browser: connections that break at every frame, with its state in IndexedDB."""

from __future__ import annotations

import json
import random

from conductor.messages import ToolResult, UserMessage
from tests.system.test_javascript_client import PACKAGE, TOKEN, demo
from tests.system.web.browser import chromium

CUTS = 300
TOOL = {
    "name": "notes.add",
    "inputSchema": {"type": "object", "properties": {"number": {"type": "integer"}}},
}
PLAY = """async ({ seed, cuts, tool, token }) => {
  const { connect, indexedDbStorage } = await import("/conductor.js");
  const { cutTalks } = await import("/cutting.js");
  const storage = indexedDbStorage("cuts");
  const reconnect = { firstMs: 0, mostMs: 0 };
  const open = (sessionId, options) => connect({ token, sessionId, storage, reconnect, ...options });
  const check = (turn, runs, number) => {
    const found = JSON.stringify([turn.ending, turn.errors, runs, turn.text.includes(`number ${number}`)]);
    if (found !== JSON.stringify(["idle", [], [number], true])) throw new Error(`talk ${number}: ${found}`);
  };
  return cutTalks({ open, WebSocket, tool, check, seed, cuts, atOnce: 10, name: "web-cuts" });
}"""


STORE = """async () => {
  const { indexedDbStorage } = await import("/conductor.js");
  const now = Date.now();
  const storage = indexedDbStorage("pruned");
  await storage.save("fresh", { handled: [] });
  Date.now = () => now - 8 * 24 * 3_600_000;
  await storage.save("old", { handled: [] });
  Date.now = () => now;
  const later = indexedDbStorage("pruned");
  return [Boolean(await later.load("fresh")), Boolean(await later.load("old"))];
}"""


async def test_a_session_that_was_not_used_for_a_week_is_forgotten() -> None:
    async with demo() as listener, chromium() as browser:
        page = await browser.new_page()
        await page.goto(f"http://127.0.0.1:{listener.port}/")
        assert await page.evaluate(STORE) == [True, False]


async def test_nothing_is_lost_or_doubled_by_300_cuts_in_a_browser() -> None:
    seed = random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")  # noqa: T201 -- shown where the test fails
    async with demo() as listener, chromium() as browser:
        page = await browser.new_page()
        await page.route("**/cutting.js", lambda route: route.fulfill(path=PACKAGE / "test" / "cutting.js"))
        await page.goto(f"http://127.0.0.1:{listener.port}/")
        options = {"seed": seed, "cuts": CUTS, "tool": TOOL, "token": TOKEN}
        print(await page.evaluate(PLAY, options))  # noqa: T201
        sessions = [session for session in listener.registry.sessions if "cuts" in session.key.session_id]
    assert len(sessions) >= 60
    for session in sessions:
        number = session.key.session_id.rpartition("-")[2]
        texts = [message.text for message in session.state.log if isinstance(message, UserMessage)]
        assert texts == [f'call notes.add with {{"number": {number}}}']
        results = [message for message in session.state.log if isinstance(message, ToolResult)]
        assert [json.loads(message.content)["data"] for message in results] == [f"number {number}"]
