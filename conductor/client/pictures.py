"""Images of an app: checked as the server checks them, before they are sent."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conductor.events.client import WirePicture
from conductor.images import MAX_IMAGES, ImageRefused, Picture, checked, format_of


@dataclass(frozen=True, slots=True)
class Shown:
    """What a handler returns with images for a model that sees.

    ``images`` are files of JPEG, PNG or WebP, at most three of 786,432 bytes; the library does not scale
    them, and services scale what is wider than 1,568 pixels down. ``result`` is a string or a JSON value.
    """

    images: Sequence[bytes]
    result: Any = None


def wire_pictures(images: Sequence[bytes]) -> list[WirePicture]:
    """Write images for the wire.

    Raises `ImageRefused`, a `ValueError`, for one that the server would refuse, and `TypeError` for a path.
    """
    if not all(isinstance(data, bytes) for data in images):
        raise TypeError("images are the bytes of files, such as Path(name).read_bytes().")
    if len(images) > MAX_IMAGES:
        raise ImageRefused(f"There are {len(images)} images; the most is {MAX_IMAGES}.")
    pictures = [checked(Picture(format_of(data) or "", data)) for data in images]
    return [
        WirePicture(picture.media_type, b64encode(data).decode())
        for picture, data in zip(pictures, images, strict=True)
    ]
