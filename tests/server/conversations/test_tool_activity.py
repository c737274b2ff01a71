"""The event ``tool.activity``, for apps with the capability."""

from __future__ import annotations

import json
from typing import Any

from tests.dialogues import (
    LIMIT_MS,
    LOOK,
    MOVE,
    SLOW_SAVE,
    call,
    call_id,
    decide,
    talking,
)
from tests.models import AnthropicService, Call, Reply


async def test_tool_activity_names_every_call_in_order(claude: AnthropicService) -> None:
    def broken(_: dict[str, Any]) -> str:
        raise RuntimeError("the secret reason")

    tools = [LOOK, MOVE, SLOW_SAVE]
    claude.replies += [
        Reply(calls=(Call("calculator", {"expression": "6*7"}),)),
        Reply(calls=(Call("calculator", {"expression": "6*"}),)),
        Reply(calls=(call("look", "the secret place"),)),
        Reply(calls=(call("move_file"),)),
        Reply(calls=(call("save_note"),)),
        Reply(calls=(Call("no_such_tool"), Call("look", {"path": 7}))),
        Reply(text="Done."),
    ]
    answers = {"look": lambda a: "the secret result", "move_file": broken}
    async with talking(claude, "activity", "approval", tools=tools, device=answers) as phone:
        since = len(phone.log)
        phone.say("go")
        request = await phone.until("approval.request")
        assert "move_file" not in {event["payload"]["name"] for event in phone.events("tool.activity")}
        await decide(phone, request, "allow")
        await phone.until("assistant.speech.final", since=since)
        sequence = [
            (e["payload"]["name"], e["payload"]["source"], e["payload"]["status"])
            for e in phone.events("tool.activity")
        ]
        names = [("calculator", "builtin")] * 2 + [
            (name, "device") for name in ("look", "move_file", "save_note")
        ]
        assert sequence == [(*name, status) for name in names for status in ("started", "finished")]
        ended = phone.events("tool.activity", status="finished")
        kinds = [event["payload"]["errorType"] for event in ended]
        assert kinds[0] == "none" and kinds[1] != "none"
        assert kinds[2:] == ["none", "tool_error", "unknown"]
        assert ended[2]["payload"]["dataSizeBytes"] == len("the secret result")
        assert ended[4]["payload"]["executionTimeMs"] >= LIMIT_MS
        assert ended[2]["payload"]["display"].startswith("look: done, 17 bytes, ")
        assert "secret" not in json.dumps(phone.events("tool.activity"))
        for start, over in zip(phone.events("tool.activity", status="started"), ended, strict=True):
            assert start["payload"]["callId"] == over["payload"]["callId"]
        looked = phone.events("look")[0]
        assert call_id(ended[2]) == call_id(looked)
