"""Serve a phone in the local network: this machine's address, a token, and a QR code of both."""

from __future__ import annotations

import io
import ipaddress
import secrets
import socket

from conductor.errors import SettingsError

_SOMEWHERE_ELSE = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737): nothing is sent, but a route to it names our own address."""


def lan_address() -> str:
    """Find this machine's address in the local network. Raises `SettingsError` if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # UDP: connecting chooses a route and sends nothing.
            probe.connect(_SOMEWHERE_ELSE)
            address = str(probe.getsockname()[0])
        except OSError:
            raise SettingsError("--lan: this machine is in no network.") from None
    return private(address)


def private(address: str) -> str:
    """Return the address if only a local network can reach it. Raises `SettingsError`."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        raise SettingsError(f"--lan: {address!r} is no address.") from None
    if not parsed.is_private or parsed.is_loopback or parsed.is_unspecified:
        raise SettingsError(f"--lan: {address} is no address of a local network; use --host and AUTH_TOKENS.")
    return address


def new_token() -> str:
    """Make a token of 192 random bits."""
    return secrets.token_urlsafe(24)


def phone_url(host: str, port: int, token: str) -> str:
    """Make the URL for the phone, token included."""
    return f"ws://{host}:{port}/ws?token={token}"


def qr_code(text: str) -> str:
    """Draw a QR code for a terminal."""
    import segno

    out = io.StringIO()
    segno.make(text, error="l").terminal(out, border=2, compact=True)
    return out.getvalue()
