"""The terminal that a server was started on."""

from __future__ import annotations

import os

_STANDARD = (0, 1, 2)


class Terminal:
    """The standard streams that are a terminal now, at the start."""

    def __init__(self) -> None:
        self._streams = [stream for stream in _STANDARD if os.isatty(stream)]

    def is_closed(self) -> bool:
        """Tell whether there was a terminal and it is gone, for the handler of SIGHUP.

        The kernel ends the terminal before it sends the signal. The streams then lead nowhere, since writing
        to them would fail.
        """
        if not self._streams or any(map(os.isatty, self._streams)):
            return False
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in self._streams:
            os.dup2(nowhere, stream)
        os.close(nowhere)
        return True
