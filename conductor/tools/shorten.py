"""How an observation that is too long for the model is shortened."""

from __future__ import annotations

MAX_OBSERVATION_BYTES = 16 * 1024


def shorten(text: str, limit_bytes: int = MAX_OBSERVATION_BYTES, whole: int | None = None) -> str:
    """Cut a text to ``limit_bytes`` of UTF-8, marker included; the marker says how much is missing.

    ``whole`` is the size in bytes of what the text is only the beginning of.

    The cut falls between characters. A text within the limit is returned as it is. Below some 50 bytes only
    the marker remains, which may then be longer than the limit.
    """
    if whole is None and len(text) * 4 <= limit_bytes:  # no character takes more than four bytes
        return text
    encoded = text.encode(errors="replace")
    if whole is None and len(encoded) <= limit_bytes:
        return text
    size = len(encoded) if whole is None else max(whole, len(encoded))
    # The marker is as long as possible when everything is missing; room for it is kept before the cut.
    room = max(0, limit_bytes - len(_marker(size, size)))
    kept = encoded[:room].decode(errors="ignore")
    return kept + _marker(size - len(kept.encode()), size)


def _marker(missing: int, whole: int) -> str:
    return f"\n[shortened: {missing:,} of {whole:,} bytes are missing]"
