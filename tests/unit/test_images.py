"""The headers of images: each format's size, and what is refused before anything decodes it."""

from __future__ import annotations

import struct
from random import Random

import pytest

from conductor.images import ImageRefused, Picture, checked, format_of, from_base64, take
from tests.pictures import JPEG, WEBP, WEBP_EXTENDED, WEBP_LOSSLESS, jpeg_of, png, webp_of

TYPES = "image/jpeg, image/png, image/webp"


def webp(*parts: tuple[bytes, bytes]) -> bytes:
    """Make a WebP of named parts; one with an odd number of bytes is filled up."""
    written = (name + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2) for name, body in parts)
    return b"RIFF\0\0\0\0WEBP" + b"".join(written)


SIDES = (1_568).to_bytes(3, "little") + (1_044).to_bytes(3, "little")  # less one each
SCALED = struct.pack("<HH", 1_568 | 0x4000, 1_045 | 0x8000)  # the upper bits ask for a larger picture
LOSSY = (b"VP8 ", b"\0\0\0\x9d\x01\x2a" + SCALED)
LOSSLESS = (b"VP8L", b"\x2f" + struct.pack("<I", 1_567 | 1_044 << 14))
SIZES = {
    "PNG": ("image/png", png(640, 480), (640, 480)),
    "the largest PNG": ("image/png", png(3_999, 4_000), (3_999, 4_000)),
    "the longest PNG": ("image/png", png(8_000, 1), (8_000, 1)),
    "the largest file": ("image/png", png().ljust(786_432, b"\0"), (8, 8)),
    "JPEG": ("image/jpeg", jpeg_of(1_568, 1_045), (1_568, 1_045)),
    "JPEG with bytes that fill": ("image/jpeg", JPEG[:2] + b"\xff\xff" + JPEG[2:], (1, 1)),
    "JPEG with a marker without a length": ("image/jpeg", JPEG[:2] + b"\xff\xd0" + JPEG[2:], (1, 1)),
    "lossy WebP": ("image/webp", WEBP, (1, 1)),
    "lossless WebP": ("image/webp", WEBP_LOSSLESS, (1, 1)),
    "lossy WebP that asks to be scaled": ("image/webp", webp(LOSSY), (1_568, 1_045)),
    "lossless WebP with a size": ("image/webp", webp(LOSSLESS), (1_568, 1_045)),
    "a frame of an animation": ("image/webp", webp((b"ANMF", bytes(6) + SIDES + bytes(4))), (1_569, 1_045)),
    "WebP behind a part of odd length": ("image/webp", webp((b"ICCP", b"abc"), LOSSLESS), (1_568, 1_045)),
    "extended WebP": ("image/webp", WEBP_EXTENDED, (1, 1)),
}


@pytest.mark.parametrize(("media_type", "data", "size"), SIZES.values(), ids=SIZES)
def test_an_image_has_the_size_of_its_header(media_type: str, data: bytes, size: tuple[int, int]) -> None:
    image = checked(Picture(media_type, data))
    assert (image.media_type, image.size, image.width, image.height) == (media_type, len(data), *size)


def two_frames(first: bytes, second: bytes) -> bytes:
    """Make a JPEG with the frames of two."""
    at = first.index(b"\xff\xc2")
    end = at + 2 + int.from_bytes(first[at + 2 : at + 4])
    return first[:end] + second[at:]


def short_frame() -> bytes:
    """Make a JPEG whose frame ends before the width."""
    return b"\xff\xd8\xff\xc0\x00\x07\x08\x00\x01\x00\x01\xff\xda"


def replaced(data: bytes, part: bytes, other: bytes) -> bytes:
    """Write another part of as many bytes into a file."""
    assert part in data and len(part) == len(other)
    return data.replace(part, other)


def small_canvas() -> bytes:
    """Make a WebP whose picture is larger than its canvas."""
    at = WEBP_EXTENDED.index(b"\x9d\x01\x2a") + 3
    size = (9_000).to_bytes(2, "little") * 2
    return WEBP_EXTENDED[:at] + size + WEBP_EXTENDED[at + 4 :]


# The head of an animation's frame.
FRAME = b"ANMF\x18\0\0\0" + bytes(16)
REFUSED = {
    "16 megapixels": ("image/png", png(4_000, 4_000), "4,000 x 4,000 pixels"),
    "a long side": ("image/png", png(8_001, 1), "8,001 x 1 pixels"),
    "a high side": ("image/png", png(1, 8_001), "1 x 8,001 pixels"),
    "a second, larger frame": ("image/jpeg", two_frames(JPEG, jpeg_of(8_000, 8_000)), "8,000 x 8,000 pixels"),
    "a second, smaller frame": (
        "image/jpeg",
        two_frames(jpeg_of(8_000, 8_000), JPEG),
        "8,000 x 8,000 pixels",
    ),
    "a picture larger than its canvas": ("image/webp", small_canvas(), "9,000 x 9,000 pixels"),
    "a canvas": ("image/webp", webp_of(16_384, 16_384), "16,384 x 16,384 pixels"),
    "no pixels": ("image/jpeg", jpeg_of(0, 9), "is empty"),
    "no frame": ("image/jpeg", b"\xff\xd8\xff\xd9", "is empty"),
    "no part of a WebP": ("image/webp", b"RIFF\0\0\0\0WEBP", "is empty"),
    "the name of a part of a WebP": ("image/webp", b"RIFF\0\0\0\0WEBPVP8X", "is empty"),
    "another first part of a PNG": ("image/png", replaced(png(), b"IHDR", b"CgBI"), "is damaged"),
    "a PNG without the sum of its header": ("image/png", png()[:32], "is damaged"),
    "a byte between the parts of a JPEG": ("image/jpeg", JPEG[:2] + b"\xff\xd0\0" + JPEG[2:], "is damaged"),
    "a part of a JPEG that ends behind the file": ("image/jpeg", b"\xff\xd8\xff\xe0\xff\xff", "is damaged"),
    "a short frame": ("image/jpeg", short_frame(), "is damaged"),
    "half the head of a lossy WebP": ("image/webp", WEBP[:29], "is damaged"),
    "a lossy WebP without its sign": ("image/webp", replaced(WEBP, b"\x9d\x01\x2a", bytes(3)), "is damaged"),
    "half the head of a lossless WebP": ("image/webp", WEBP_LOSSLESS[:24], "is damaged"),
    "a lossless WebP without its sign": (
        "image/webp",
        WEBP_LOSSLESS[:20] + b"\0" + WEBP_LOSSLESS[21:],
        "is damaged",
    ),
    "half a PNG": ("image/png", png()[:20], "is damaged"),
    "half a JPEG": ("image/jpeg", JPEG[:20], "is damaged"),
    "half a WebP": ("image/webp", WEBP[:20], "is damaged"),
    "half a canvas of a WebP": ("image/webp", WEBP_EXTENDED[:29], "is damaged"),
    "half a frame of a WebP": ("image/webp", WEBP_EXTENDED[:30] + FRAME[:20], "is damaged"),
    "a JPEG of bytes that fill": ("image/jpeg", JPEG[:2] + b"\xff" * 700_000, "is damaged"),
    "a WebP of empty parts": ("image/webp", b"RIFF\0\0\0\0WEBP" + b"ABCD\0\0\0\0" * 80_000, "is damaged"),
    "another type": ("image/jpeg", png(), "is called image/jpeg, and its first bytes are image/png"),
    "a vector": ("image/svg+xml", b"<svg/>", "none of"),
    "too many bytes": ("image/png", png(noise=700_000), "the most is 786,432"),
}


@pytest.mark.parametrize(("media_type", "data", "why"), REFUSED.values(), ids=REFUSED)
def test_an_image_is_refused_with_the_reason(media_type: str, data: bytes, why: str) -> None:
    with pytest.raises(ImageRefused, match=why):
        checked(Picture(media_type, data))


def test_text_that_is_no_base64_or_too_long_is_refused() -> None:
    for text in ("**", "aGk", "aGk=\n", "a" * 1_048_580):
        assert isinstance(from_base64("image/png", text), ImageRefused)
    assert from_base64("image/png", "AAAA" * 262_144) == Picture("image/png", bytes(786_432))
    assert from_base64("image/png", "aGk=") == Picture("image/png", b"hi")


def test_of_many_images_the_first_three_are_taken_each_with_its_own_id() -> None:
    taken = take([Picture("image/png", png(seed=number)) for number in range(9)])
    assert [data for _, data in taken.pictures] == [png(seed=number) for number in range(3)]
    assert len({image.id for image in taken.images}) == 3 and len(taken.refusals) == 1


def test_an_image_that_is_refused_takes_nothing_from_the_others() -> None:
    taken = take([Picture("image/png", png()), ImageRefused("Not base64."), Picture("image/gif", b"GIF89a")])
    assert [image.media_type for image in taken.images] == ["image/png"]
    assert [text.split(".")[0] for text in taken.refusals] == ["Not base64", f"An image is none of {TYPES}"]


@pytest.mark.parametrize("data", [b"\xff\xd8\0\0", b"RIFF\0\0\0\0WAVE", b"FORM\0\0\0\0WEBP", b"GIF89a", b""])
def test_other_first_bytes_are_of_no_image(data: bytes) -> None:
    assert format_of(data) is None


def test_no_bytes_cost_more_than_a_refusal() -> None:
    seed = Random().randrange(2**32)
    rng = Random(seed)
    for start in (JPEG, WEBP, WEBP_LOSSLESS, WEBP_EXTENDED, png(3, 3)):
        for _ in range(300):
            data = bytearray(start)
            for _ in range(rng.randrange(1, 6)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            cut = bytes(data[: rng.randrange(len(data))]) if rng.random() < 0.3 else bytes(data)
            try:
                checked(Picture(format_of(cut) or "image/png", cut))
            except ImageRefused:
                pass
            except Exception as error:
                raise AssertionError(f"seed {seed}: {cut!r}") from error
