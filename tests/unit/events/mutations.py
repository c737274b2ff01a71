"""Damages valid events, in bytes and in meaning, so that the same seed gives the same damage."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from protocol_schema import sent_by

from tests.unit.events.events import VALID

Tree: TypeAlias = Any
"""A JSON value."""

BIG = 300_000
"""About as large as a mutant gets unless ``largest`` says otherwise: above the soft limit of an event."""

_PAYLOADS: dict[str, list[dict[str, Any]]] = {
    event.type: [event.example["payload"], *(payload for kind, payload in VALID if kind == event.type)]
    for event in sent_by("client")
}
_PAYLOADS["user.audio.transcript.final"].append({"text": "Wie läuft's? 進捗は? 🎉"})
_PAYLOADS["app.telemetry"] = [{"battery": 0.5, "list": [1, [2, {"three": 3}]]}]

NUMBERS = (
    *("0", "-0", "1", "-1", "2", "1.0", "1e0", "9007199254740991", "9007199254740992", "-9007199254740993"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775809", "18446744073709551616"),
    *("1e308", "1e309", "-1e999", "1e-999", "5e-324", "0." + "0" * 400 + "1", "1" + "0" * 400, "1" * 5_000),
    *("0." + "3" * 20_000, "1e" + "9" * 50, "NaN", "Infinity", "-Infinity", "0x10", "01", "1.", ".5", "+1"),
)
"""Numbers at the limits of parsers, doubles and integers, as JSON text or nearly."""

TEXTS = (
    *('""', '" "', '"\t"', '"\x00"', '"\x7f"', '"\ufeff"', '"\u200b\u200d"', '"e\u0301"', '"\u2028\u2029"'),
    *r'"\u0000" "\ud800" "\udc00\ud800" "\ud83c\udf89" "\u202e\u2066" "\uffff" "\x41" "\u12"'.split(),
    *('"' + "\U0001f469\u200d" * 60 + '"', '"' + "a\u0300" * 200 + '"'),
    *('"' + "\\\\" * 300 + '"', '"' + "x" * 129 + '"'),
)
"""Strings, as JSON text or nearly: empty, controls, half surrogates, marks that turn or join letters."""

BYTES = (
    *map(bytes.fromhex, "ff feff c080 eda080 f4908080 f09f e282 80".split()),
    *(b"\x00", b"\xef\xbb\xbf", b"\r\n", b"\x1b[2J", b"\xc2\x85"),
)
"""What UTF-8 does not allow (overlong, surrogate, too large, cut off), and bytes that confuse."""


def valid_events() -> Iterator[dict[str, Any]]:
    """Give an event for each sample of the client's events, and one of an unknown type."""
    for number, (event_type, payloads) in enumerate(_PAYLOADS.items()):
        for payload in payloads:
            yield {
                "id": f"evt_{number}",
                "type": event_type,
                "timestamp": "2026-03-01T12:00:00.000Z",
                "sessionId": "s-1",
                "protocolVersion": 1,
                "payload": payload,
            }


class Mutator:
    """Gives mutants without end; ``seed`` decides them all. None is much larger than ``largest`` bytes."""

    def __init__(self, seed: int, *, largest: int = BIG, session_id: str = "s-1") -> None:
        self._random = random.Random(seed)
        self._largest = largest
        self._events = [{**event, "sessionId": session_id} for event in valid_events()]
        self._frames = [json.dumps(event, ensure_ascii=False).encode() for event in self._events]

    def next(self) -> bytes:
        """Give the next mutant: one to four kinds of damage, one after the other."""
        rand = self._random
        if rand.random() < 0.5:
            data = rand.choice(self._frames)
        else:
            data = _damaged_tree(rand, rand.choice(self._events), self._largest)
        for _ in range(rand.choice((0, 1, 1, 1, 2, 3))):
            data = rand.choice(_ON_BYTES)(rand, data, self._frames)
        return data[: 2 * self._largest]


# -- damage to the meaning

_MARK = "\ue000"
"""Stands where raw JSON text goes, which no encoder would write."""


def _damaged_tree(rand: random.Random, event: dict[str, Any], largest: int) -> bytes:
    tree: Tree = json.loads(json.dumps(event))
    raw: list[str] = []
    for _ in range(rand.choice((1, 1, 2, 3))):
        tree = _change(rand, tree, raw, largest)
    text = json.dumps(tree, ensure_ascii=rand.random() < 0.5)
    for number, piece in enumerate(raw):
        for mark in (f'"{_MARK}{number}{_MARK}"', f'"\\ue000{number}\\ue000"'):
            # A list may repeat the mark a thousand times.
            text = text.replace(mark, piece, 1 + largest // (len(piece) + 1))
    return text.encode("utf-8", "surrogatepass")


def _change(rand: random.Random, tree: Tree, raw: list[str], largest: int) -> Tree:
    """Put something else at one place of the tree, the envelope's fields more often than others."""
    inner = [value for value in tree.values() if isinstance(value, dict)]
    target = rand.choice([tree, *inner, *_objects_below(inner)])
    keys = list(target) or ["text"]
    key = rand.choice(keys)
    if rand.random() < 0.15:
        target.pop(key, None)
    elif rand.random() < 0.15:
        target[rand.choice(("constructor", "__proto__", "", "\u0000", "x" * 1_000, key + " "))] = target.get(
            key
        )
    else:
        target[key] = rand.choice(_VALUES)(rand, target.get(key), raw, largest)
    return tree


def _objects_below(values: Sequence[Tree]) -> list[Tree]:
    """Find objects one or two levels below others, such as the decisions of a list; at most eight."""
    below: list[Tree] = []
    for value in values:
        for inner in value.values():
            items = inner if isinstance(inner, list) else [inner]
            below += [item for item in items if isinstance(item, dict)]
    return below[:8]


def _literal(raw: list[str], text: str) -> str:
    raw.append(text)
    return f"{_MARK}{len(raw) - 1}{_MARK}"


def _deep(rand: random.Random, _: Tree, raw: list[str], largest: int) -> Tree:
    depth = min(rand.choice((30, 31, 32, 33, 200, 1_000, 20_000, 150_000)), largest // 12)
    opening, closing = rand.choice((("[", "]"), ('{"a":', "}"), ('[{"":', "}]")))
    return _literal(raw, opening * depth + "0" + closing * depth)


def _wide(rand: random.Random, old: Tree, raw: list[str], largest: int) -> Tree:
    count = min(rand.choice((100, 4_990, 5_000, 100_000)), largest // 12)
    if rand.random() < 0.5:
        text = json.dumps(old)
        # Copies: a later change of one would change all, and the mutant would grow a thousandfold.
        return [json.loads(text) for _ in range(min(count, largest // (len(text) + 2)))]
    same = rand.random() < 0.5
    names = ("k" if same else f"k{number}" for number in range(count))
    return _literal(raw, "{" + ",".join(f'"{name}":0' for name in names) + "}")


def _long(rand: random.Random, _: Tree, raw: list[str], largest: int) -> Tree:
    unit = rand.choice(("x", "\u00e4", "\U0001f389", "\\u00e9", "\\\\", " "))
    return _literal(
        raw, '"' + unit * min(rand.choice((128, 129, 5_000, 66_000)), largest // len(unit.encode())) + '"'
    )


_VALUES: Sequence[Callable[[random.Random, Tree, list[str], int], Tree]] = (
    lambda rand, old, raw, largest: rand.choice(
        (None, True, False, [], {}, "", 0, -1, 1.5, [None], {"": {}}, [[]])
    ),
    lambda rand, old, raw, largest: [old],
    lambda rand, old, raw, largest: {"text": old},
    lambda rand, old, raw, largest: json.dumps(old),
    lambda rand, old, raw, largest: _literal(raw, rand.choice(NUMBERS)),
    lambda rand, old, raw, largest: _literal(raw, rand.choice(TEXTS)),
    lambda rand, old, raw, largest: rand.choice(list(_PAYLOADS)),
    _deep,
    _wide,
    _long,
)


# -- damage to the bytes


def _flip(rand: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    if not data:
        return data
    damaged = bytearray(data)
    for _number in range(rand.choice((1, 1, 2, 8))):
        damaged[rand.randrange(len(damaged))] ^= 1 << rand.randrange(8)
    return bytes(damaged)


def _cut(rand: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    return data[: rand.randrange(len(data) + 1)]


def _remove(rand: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start = rand.randrange(len(data) + 1)
    return data[:start] + data[start + rand.choice((1, 1, 2, 10, 100)) :]


def _double(rand: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start = rand.randrange(len(data) + 1)
    end = min(len(data), start + rand.choice((1, 3, 20, 200)))
    return data[:end] + data[start:end] * rand.choice((1, 1, 2, 50)) + data[end:]


def _splice(rand: random.Random, data: bytes, frames: Sequence[bytes]) -> bytes:
    tail = rand.choice(frames)
    return data[: rand.randrange(len(data) + 1)] + tail[rand.randrange(len(tail)) :]


def _insert(rand: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    piece = rand.choice((*BYTES, *_TOKENS, rand.choice(NUMBERS).encode()))
    start = rand.randrange(len(data) + 1)
    return data[:start] + piece + data[start:]


def _replace(rand: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    old = rand.choice(_TOKENS)
    return data.replace(old, rand.choice((*_TOKENS, *BYTES)), rand.choice((1, -1)))


_TOKENS = (*rb'{ } [ ] " , : \ /**/ \u null true 1e ""'.split(), b" ", b"\n")
_ON_BYTES = (_flip, _cut, _remove, _double, _splice, _insert, _replace)
