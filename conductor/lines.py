"""Texts of others in a prompt's lines, of which they may not begin another."""

from __future__ import annotations


def in_line(text: str) -> str:
    """Return a text in one line, whatever ends its lines."""
    return " ".join(text.split())


def in_item(text: str) -> str:
    """Return a text for one item of a list: each further line is indented, whatever ends the one before."""
    return "\n  ".join(text.splitlines())
