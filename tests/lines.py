"""The ends of lines that `str.splitlines` knows."""

from __future__ import annotations

LINE_ENDS = "\n,\r,\r\n,\v,\f,\x1c,\x1d,\x1e,\x85,\u2028,\u2029".split(",")
