"""Images of the Python library, against a server with the demo model."""

from __future__ import annotations

from pathlib import Path

import pytest

from conductor.client import Shown, connect
from conductor.plugins.models.demo import DemoProvider
from tests.app import WAIT
from tests.pictures import JPEG, png
from tests.serving import serving

LOOK = {"name": "camera.look", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}


async def test_a_handler_and_words_give_images() -> None:
    async with serving(DemoProvider(0)) as served:
        async with connect(served.url, tools=[LOOK]) as client:
            client.on_tool("camera.look", lambda _: Shown([JPEG, png(640, 480)], {"at": "noon"}))
            seen = await (await client.say("What do you see?")).wait(WAIT)
            shown = await (await client.say("What is this?", images=[png(64, 48)])).wait(WAIT)
    assert seen.text.startswith("I got 2 pictures, the first of 1 by 1 pixels")
    assert shown.text.startswith("I got a picture (64 by 48 pixels")


async def test_an_image_that_the_server_would_refuse_is_an_error_at_once() -> None:
    async with serving(DemoProvider(0)) as served:
        async with connect(served.url, tools=[LOOK]) as client:
            client.on_tool("camera.look", lambda _: Shown([png(4_000, 4_000)]))
            seen = await (await client.say("What do you see?")).wait(WAIT)
            with pytest.raises(ValueError, match="none of"):
                await client.say("What is this?", images=[b"GIF89a"])
            with pytest.raises(ValueError, match="There are 4 images; the most is 3"):
                await client.say("What is this?", images=[JPEG] * 4)
            with pytest.raises(TypeError, match="bytes of files"):
                await client.say("What is this?", images=[Path("lamp.png")])  # type: ignore[list-item]  # as users may
    assert "4,000 x 4,000 pixels" in seen.text
