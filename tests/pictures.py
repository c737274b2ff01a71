"""Pictures for tests: small real ones of each format, and headers that promise more."""

from __future__ import annotations

import struct
import zlib
from base64 import b64decode, b64encode
from random import Random

JPEG = b64decode(
    "/9j/4AAQSkZJRgABAQEASABIAAD/2wBDAP//////////////////////////////////////////////////////////////////////"
    "////////////////wgALCAABAAEBAREA/8QAFBABAAAAAAAAAAAAAAAAAAAAAP/aAAgBAQABPxA="
)
WEBP = b64decode("UklGRiIAAABXRUJQVlA4IBYAAAAwAQCdASoBAAEADsD+JaQAA3AAAAAA")
WEBP_LOSSLESS = b64decode("UklGRhoAAABXRUJQVlA4TA0AAAAvAAAAEAcQERGIiP4HAA==")
WEBP_EXTENDED = b64decode(
    "UklGRkoAAABXRUJQVlA4WAoAAAAQAAAAAAAAAAAAQUxQSAwAAAARBxAR/Q9ERP8DAABWUDggGAAAABQBAJ0BKgEAAQAAAP4AAA3AAP7m"
    "tQAAAA=="
)


def png(width: int = 8, height: int = 8, *, seed: int = 0, noise: int = 0) -> bytes:
    """Make a grey picture, another one by its ``seed``; ``noise`` adds bytes that do not shrink."""
    row = b"\x00" + bytes([seed % 256]) * width
    pixels = zlib.compress(row * height, 9)
    text = [_chunk(b"tEXt", b"c\x00" + b64encode(Random(seed).randbytes(noise)))] if noise else []
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = [_chunk(b"IHDR", head), *text, _chunk(b"IDAT", pixels), _chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def broken_png() -> bytes:
    """Make a picture with a right header and pixels that cannot be decoded."""
    whole = png(640, 480)
    at = whole.index(b"IDAT") + 6
    return whole[:at] + bytes(len(whole) - at - 12) + whole[-12:]


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def jpeg_of(width: int, height: int) -> bytes:
    """Let a JPEG promise a size."""
    at = JPEG.index(b"\xff\xc2") + 5
    return JPEG[:at] + struct.pack(">HH", height, width) + JPEG[at + 4 :]


def webp_of(width: int, height: int) -> bytes:
    """Let a WebP's canvas promise a size."""
    at = WEBP_EXTENDED.index(b"VP8X") + 12
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return WEBP_EXTENDED[:at] + size + WEBP_EXTENDED[at + 6 :]


def on_the_wire(data: bytes, mime_type: str = "image/png") -> dict[str, str]:
    """Write a picture as the app sends it."""
    return {"mimeType": mime_type, "data": b64encode(data).decode()}
