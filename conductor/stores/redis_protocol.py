"""The Redis wire protocol (RESP 2): commands to bytes, and bytes to replies.

By hand, since a commit by redis-py costs its caller five times the CPU of all the rest of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Reply: TypeAlias = "bytes | int | list[Reply] | ReplyError | None"


class ReplyError(Exception):
    """An error that the server answered with; ``code`` is its first word, such as ``NOSCRIPT``."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.partition(" ")[0]


class ProtocolError(Exception):
    """What arrived is no reply: something else than Redis answers there."""


def write_argument(value: str | bytes) -> bytes:
    """Write one argument. Characters that no UTF-8 text holds are replaced by ``?``."""
    data = value.encode("utf-8", "replace") if isinstance(value, str) else value
    return b"$%d\r\n%b\r\n" % (len(data), data)


def write_command(*arguments: str | bytes) -> bytes:
    """Write a command; its name is the first argument."""
    return b"*%d\r\n%b" % (len(arguments), write_arguments(arguments))


def write_arguments(arguments: Iterable[str | bytes]) -> bytes:
    """Write some of a command's arguments, to be put together with others."""
    return b"".join([write_argument(each) for each in arguments])


class ReplyReader:
    """Takes bytes as they arrive, and gives the replies that are complete; no byte is looked at twice."""

    def __init__(self) -> None:
        self._rest = b""
        self._open: list[tuple[list[Reply], int]] = []  # arrays that lack items, with their full lengths

    def feed(self, data: bytes) -> list[Reply]:
        """Return the replies that these bytes complete. Raises `ProtocolError`."""
        data = self._rest + data if self._rest else data
        replies: list[Reply] = []
        at = 0
        while (end := data.find(b"\r\n", at)) >= 0:
            kind, head = data[at], data[at + 1 : end]
            item: Reply
            after = end + 2
            if kind == _BULK:
                size = _integer(head)
                start, after = after, after + size + 2 if size >= 0 else after
                if after > len(data):
                    break
                item = data[start : start + size] if size >= 0 else None
            elif kind == _ARRAY:
                size = _integer(head)
                item = [] if size >= 0 else None
                if size > 0:
                    self._open.append(([], size))
                    at = after
                    continue
            else:
                item = _simple(kind, head)
            at = after
            if self._place(item):
                replies.append(self._whole)
        self._rest = data[at:]
        return replies

    def _place(self, item: Reply) -> bool:
        """Put an item where it belongs; True if a reply is whole by it, which is then ``_whole``."""
        while self._open:
            items, size = self._open[-1]
            items.append(item)
            if len(items) < size:
                return False
            self._open.pop()
            item = items
        self._whole = item
        return True


_BULK, _ARRAY, _NUMBER, _STATUS, _ERROR = b"$*:+-"


def _simple(kind: int, head: bytes) -> Reply:
    if kind == _NUMBER:
        return _integer(head)
    if kind == _STATUS:
        return head
    if kind == _ERROR:
        return ReplyError(head.decode("utf-8", "replace"))
    raise ProtocolError("what answers there is no Redis server")


def _integer(head: bytes) -> int:
    try:
        return int(head)
    except ValueError:
        raise ProtocolError("what answers there is no Redis server") from None
