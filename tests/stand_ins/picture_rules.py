"""What model services refuse in the base64 of an image; pure."""

from __future__ import annotations

import re
import zlib
from base64 import b64decode
from binascii import Error

from tests.stand_ins.anthropic_script import Refused

_FIRST = {
    "image/png": rb"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
    "image/jpeg": rb"\xff\xd8\xff",
    "image/webp": rb"RIFF.{4}WEBP",
    "image/gif": rb"GIF8[79]a",
}
MAX_BASE64 = 5 * 1024 * 1024
_DATA_URL = re.compile(r"data:(image/[a-z]+);base64,(.+)\Z")


def check_picture(media_type: str, data: str, path: str) -> None:
    """Refuse data that are not base64, too large, or of another format than ``media_type``."""
    if media_type not in _FIRST:
        raise Refused(f"{path}: media_type should be one of {', '.join(_FIRST)}")
    if len(data) > MAX_BASE64:
        raise Refused(f"{path}: image exceeds 5 MB maximum")
    try:
        content = b64decode(data, validate=True)
    except (Error, ValueError):
        raise Refused(f"{path}: invalid base64 data") from None
    if re.match(_FIRST[media_type], content, re.DOTALL) is None:
        raise Refused(f"{path}: Image does not match the provided media type {media_type}")
    if media_type == "image/png":
        _check_pixels(content, path)


def _check_pixels(png: bytes, path: str) -> None:
    """Refuse a PNG whose pixels cannot be decoded (PNG specification, 5.3 and 10)."""
    at, pixels = 8, b""
    while at + 12 <= len(png):
        size, name = int.from_bytes(png[at : at + 4]), png[at + 4 : at + 8]
        pixels += png[at + 8 : at + 8 + size] if name == b"IDAT" else b""
        at += 12 + size
    try:
        zlib.decompress(pixels)
    except zlib.error:
        raise Refused(f"{path}: Could not process image") from None


def check_data_url(url: str, path: str) -> None:
    """Refuse what is no data URL of an image."""
    match = _DATA_URL.match(url) if isinstance(url, str) else None
    if match is None:
        raise Refused(f"{path}: Expected a base64-encoded data URL with an image MIME type")
    check_picture(match[1], match[2], path)
