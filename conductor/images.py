"""Images that an app or a tool gives: their format and size, before anything decodes them.

Only headers are read: JPEG (ITU-T T.81, B.2.2), PNG (11.2.2 IHDR), WebP (developers.google.com/speed/webp,
"RIFF Container"). The pixels are for the model's service.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from secrets import token_hex

import msgspec

MAX_IMAGES = 3
"""Images of one result or transcript."""
MAX_BASE64_CHARS = 1_048_576
MAX_PIXELS = 16_000_000
MAX_SIDE = 8_000
"""Pixels of a side; Anthropic and Bedrock refuse the whole request for more."""
MEDIA_TYPES = ("image/jpeg", "image/png", "image/webp")

_PNG = b"\x89PNG\r\n\x1a\n"
# Markers of JPEG without a length, and the ones whose segment has the size of the picture.
_BARE = frozenset({0x01, *range(0xD0, 0xD8)})
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SCAN, _END = 0xDA, 0xD9
# Parts of an image that are looked at: a millisecond.
_MAX_PARTS = 2_000


class Image(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An image of a message. Its bytes are beside the log, under its ``id``, until it is ``gone``.

    ``size`` is in bytes, ``width`` and ``height`` are in pixels. ``refused`` says why an image was not taken:
    it is gone from the beginning.
    """

    id: str
    media_type: str
    size: int
    width: int
    height: int
    gone: bool = False
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """An image with its bytes, as an app or a tool gave it; ``media_type`` is what they call it."""

    media_type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of pictures: ``images``, ``pictures`` with their bytes by id, and a sentence a refusal."""

    images: tuple[Image, ...] = ()
    pictures: tuple[tuple[str, bytes], ...] = ()
    refusals: tuple[str, ...] = ()

    @property
    def with_refused(self) -> tuple[Image, ...]:
        """The images, and one in place of each refusal: words have no notes that could tell of it."""
        refused = (
            Image(id="", media_type="", size=0, width=0, height=0, gone=True, refused=sentence)
            for sentence in self.refusals
        )
        return (*self.images, *refused)


NONE_TAKEN = Taken()


class ImageRefused(ValueError):
    """An image that is not taken; the text is a sentence for people and for the model."""


def take(pictures: Sequence[Picture | ImageRefused]) -> Taken:
    """Check pictures, and give each that is taken an id."""
    images: list[Image] = []
    data: list[tuple[str, bytes]] = []
    refusals: list[str] = []
    for picture in pictures[:MAX_IMAGES]:
        try:
            if isinstance(picture, ImageRefused):
                raise picture
            image = checked(picture)
        except ImageRefused as error:
            refusals.append(str(error))
        else:
            images.append(image)
            data.append((image.id, picture.data))
    if len(pictures) > MAX_IMAGES:
        refusals.append(f"There are more than {MAX_IMAGES} images.")
    return Taken(tuple(images), tuple(data), tuple(refusals))


def from_base64(media_type: str, text: str) -> Picture | ImageRefused:
    """Decode an image of a client."""
    if len(text) > MAX_BASE64_CHARS:
        return ImageRefused(
            f"An image has {len(text):,} characters of base64; the most is {MAX_BASE64_CHARS:,}."
        )
    try:
        return Picture(media_type, binascii.a2b_base64(text, strict_mode=True))
    except ValueError:  # `binascii.Error` is one
        return ImageRefused("The data of an image are not base64.")


def checked(picture: Picture) -> Image:
    """Describe a picture. Raises `ImageRefused`: another format than it says, too large, or damaged."""
    if picture.media_type not in MEDIA_TYPES:
        raise ImageRefused(f"An image is none of {', '.join(MEDIA_TYPES)}.")
    data = picture.data
    if len(data) * 4 > MAX_BASE64_CHARS * 3:
        raise ImageRefused(f"An image has {len(data):,} bytes; the most is {MAX_BASE64_CHARS * 3 // 4:,}.")
    found = format_of(data)
    if found != picture.media_type:
        raise ImageRefused(
            f"An image is called {picture.media_type}, and its first bytes are {found or 'no image'}."
        )
    try:
        width, height = _SIZES[found](data)
    except (IndexError, ValueError):
        raise ImageRefused(f"An image of the type {found} is damaged: its size cannot be read.") from None
    if not (width and height):
        raise ImageRefused(f"An image of the type {found} is empty.")
    if width * height >= MAX_PIXELS or max(width, height) > MAX_SIDE:
        raise ImageRefused(
            f"An image has {width:,} x {height:,} pixels; it must have fewer than {MAX_PIXELS:,}, "
            f"and at most {MAX_SIDE:,} a side."
        )
    return Image(id=token_hex(8), media_type=found, size=len(data), width=width, height=height)


def format_of(data: bytes) -> str | None:
    """Return the media type that the first bytes tell; None for another format."""
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith(_PNG):
        return "image/png"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    return None


def _png_size(data: bytes) -> tuple[int, int]:
    if data[8:16] != b"\x00\x00\x00\x0dIHDR" or len(data) < 33:
        raise ValueError
    return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])


def _jpeg_size(data: bytes) -> tuple[int, int]:
    """Read the largest size of the frames before the first scan; a decoder may choose any of several."""
    width = height = 0
    position = 2
    for _ in range(_MAX_PARTS):
        if data[position] != 0xFF:
            raise ValueError
        if data[position + 1] == 0xFF:  # any number of them may fill
            position += 1
            continue
        position += 1
        marker = data[position]
        position += 1
        if marker in (_SCAN, _END):
            return width, height
        if marker in _BARE:
            continue
        length = int.from_bytes(data[position : position + 2])
        if marker in _FRAMES:
            if length < 8:
                raise ValueError
            height = max(height, int.from_bytes(data[position + 3 : position + 5]))
            width = max(width, int.from_bytes(data[position + 5 : position + 7]))
        position += length
    raise ValueError


def _webp_size(data: bytes) -> tuple[int, int]:
    """Read the largest size of the canvas, of the picture and of the frames of an animation."""
    sizes = [(0, 0), *_webp_sizes(data, 12)]
    return max(width for width, _ in sizes), max(height for _, height in sizes)


def _webp_sizes(data: bytes, position: int) -> Iterator[tuple[int, int]]:
    for _ in range(_MAX_PARTS):
        if position + 8 > len(data):
            return
        name, length = data[position : position + 4], _little(data[position + 4 : position + 8])
        body = data[position + 8 : position + 8 + min(length, 32)]
        match name:
            case b"VP8X":
                if len(body) < 10:
                    raise ValueError
                yield _little(body[4:7]) + 1, _little(body[7:10]) + 1
            case b"VP8L":
                if body[:1] != b"\x2f" or len(body) < 5:
                    raise ValueError
                bits = _little(body[1:5])
                yield (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
            case b"VP8 ":
                if body[3:6] != b"\x9d\x01\x2a" or len(body) < 10:
                    raise ValueError
                yield _little(body[6:8]) & 0x3FFF, _little(body[8:10]) & 0x3FFF
            case b"ANMF":
                if len(body) < 16:
                    raise ValueError
                yield _little(body[6:9]) + 1, _little(body[9:12]) + 1
        position += 8 + length + length % 2
    raise ValueError


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")


_SIZES = {"image/png": _png_size, "image/jpeg": _jpeg_size, "image/webp": _webp_size}
