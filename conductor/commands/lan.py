"""``serve --lan``: this machine's address in the local network, a token, and a QR code of both."""

from __future__ import annotations

import io
import ipaddress
import secrets
import socket

from conductor.errors import SettingsError

_REMOTE_ADDRESS = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737). Nothing is sent; its route gives this machine's address."""


def lan_address() -> str:
    """Find this machine's address in the local network. Raises `SettingsError` without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # UDP: connecting selects a route and sends nothing.
            probe.connect(_REMOTE_ADDRESS)
            address = str(probe.getsockname()[0])
        except OSError:
            raise SettingsError("--lan: this machine has no network.") from None
    return private(address)


def private(address: str) -> str:
    """Return the address if it belongs to a local network. Raises `SettingsError`."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        raise SettingsError(f"--lan: {address!r} is not an address.") from None
    if not parsed.is_private or parsed.is_loopback or parsed.is_unspecified:
        raise SettingsError(f"--lan: {address} is not in a local network; use --host and AUTH_TOKENS.")
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
