"""Images that tools of the server give, such as those of MCP servers."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from mcp.types import CallToolResult, ImageContent, TextContent

from conductor.images import Picture
from conductor.messages import ToolCall, ToolResult
from conductor.models.base import TextDelta
from conductor.plugins.mcp.toolset import to_outcome
from conductor.tools.base import CallContext, Toolset, ToolSpec
from conductor.tools.outcomes import ToolOutcome
from tests.models import Script
from tests.pictures import JPEG, png
from tests.session.helpers import make_services, open_stage, tool


def shots(*pictures: tuple[str, bytes], **fields: Any) -> ToolOutcome:
    """Make the outcome of an MCP server's result with image blocks."""
    blocks = [
        ImageContent(type="image", mime_type=kind, data=b64encode(data).decode()) for kind, data in pictures
    ]
    result = CallToolResult(content=[TextContent(type="text", text="See:"), *blocks], **fields)
    return to_outcome(result, "read")


class Camera(Toolset):
    """Gives the images of an MCP server."""

    def specs(self) -> Sequence[ToolSpec]:
        return [tool("camera.look", source="mcp", effect="read", risk="safe")]

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        return shots(("image/jpeg", JPEG), ("image/png", JPEG))


async def test_the_model_gets_the_images_of_a_server_and_reads_why_one_was_refused() -> None:
    replies: list[Script] = [[ToolCall("c-1", "camera.look", "{}")], [TextDelta("A cat.")]]
    stage = await open_stage(make_services(replies, toolsets=[Camera()]))
    await stage.ask("look")
    request = stage.provider.requests[-1]
    result = request.messages[-1]
    assert isinstance(result, ToolResult) and "See:" in result.content
    assert "is called image/png, and its first bytes are image/jpeg" in result.content
    assert [(request.images or {})[image.id] for image in result.images] == [JPEG]


def test_the_images_of_a_result_are_pictures_beside_its_text_or_value() -> None:
    picture = png()
    assert shots(("image/png", picture)).pictures == (Picture("image/png", picture),)
    outcome = shots(("image/png", picture), structured_content={"at": "noon"})
    assert (outcome.data, outcome.pictures) == ({"at": "noon"}, (Picture("image/png", picture),))
    assert shots(("image/png", picture), is_error=True).pictures == ()
