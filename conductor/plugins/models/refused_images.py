"""The images that a service refuses, such as damaged pixels: it takes no request with one of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import msgspec

from conductor.messages import AssistantMessage, Image, Message, ToolResult
from conductor.models.base import ModelRequest
from conductor.tools.media import label

_MOST = 256


class RefusedImages:
    """The images without which one service has taken requests that it refused before, by id."""

    def __init__(self) -> None:
        self._ids: dict[str, None] = {}

    def add(self, ids: Collection[str]) -> None:
        """Record images. Which one of several the service refuses, it does not say."""
        self._ids |= dict.fromkeys(ids)
        while len(self._ids) > _MOST:
            del self._ids[next(iter(self._ids))]

    def without(self, request: ModelRequest) -> ModelRequest:
        """Leave the refused images out of a request, in words."""
        return without_images(request, shown_images(request) & self._ids.keys())


def shown_images(request: ModelRequest) -> frozenset[str]:
    """Return the ids of the images that a request shows."""
    return frozenset(
        image.id
        for message in request.messages
        if not isinstance(message, AssistantMessage)
        for image in message.images
        if image.id in (request.images or ()) and not image.gone
    )


def without_images(request: ModelRequest, ids: Collection[str]) -> ModelRequest:
    """Put a line of text in the place of each of these images."""
    return replace(request, messages=[_in_words(item, ids) for item in request.messages]) if ids else request


def _in_words(item: Message, ids: Collection[str]) -> Message:
    if isinstance(item, AssistantMessage) or not any(image.id in ids for image in item.images):
        return item
    text = item.content if isinstance(item, ToolResult) else item.text
    lines = [_line(image) for image in item.images if image.id in ids]
    others = tuple(image for image in item.images if image.id not in ids)
    field = "content" if isinstance(item, ToolResult) else "text"
    return msgspec.structs.replace(item, **{field: "\n".join([text, *lines])}, images=others)


def _line(image: Image) -> str:
    return f"[an image that the model's service refused: {label(image.media_type, image.size)[1:]}"
