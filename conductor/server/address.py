"""The address that the server binds, the limit of its file descriptors, and the errors of both."""

from __future__ import annotations

import contextlib
import errno
import resource
import socket

from conductor.errors import SettingsError
from conductor.settings import Settings, is_loopback

# Descriptors reserved for the program's files, its store and its log.
RESERVED_DESCRIPTORS = 64
# The limit to request if there is no hard limit; some systems refuse more.
UNLIMITED_DESCRIPTORS = 65_536
# Characters of a token that admits clients of other machines; `conductor check` warns below 16.
MIN_TOKEN_CHARS = 8
# Ports below this one need privileges.
_PRIVILEGED = 1024


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard limit; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS reports infinity and refuses it as a soft limit.
    requested = UNLIMITED_DESCRIPTORS if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < requested:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (requested, hard))
    return descriptor_limit()


def descriptor_limit() -> int:
    """Return this process's limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def connections_within(descriptors: int) -> int:
    """Return how many connections the descriptors allow; at least one.

    Each takes one and a half: a third is for incomplete handshakes and requests to the model.
    """
    return max((descriptors - RESERVED_DESCRIPTORS) * 2 // 3, 1)


def check_exposure(settings: Settings, *, insecure: bool) -> None:
    """Refuse to serve other machines without tokens, or with short ones, unless ``insecure``."""
    is_local = is_loopback(settings.host)
    if insecure or (is_local and not settings.trusted_proxies):
        return
    if not (is_local or settings.authenticates):
        raise SettingsError(
            f"Listening on {settings.host} without tokens gives the whole network access; set AUTH_TOKENS, "
            "or pass --insecure-no-auth."
        )
    admin = settings.admin_token.get_secret_value() if settings.admin_token else None
    tokens = {"AUTH_TOKENS": settings.auth_tokens, "ADMIN_TOKEN": (admin,) if admin else ()}
    for name, values in tokens.items():
        if any(len(value) < MIN_TOKEN_CHARS for value in values):
            raise SettingsError(
                f"{name} has a token that can be guessed: for other machines it needs {MIN_TOKEN_CHARS} "
                "characters or more, and 16 random ones are strong."
            )


def not_bound(host: str, port: int, error: OSError | UnicodeError) -> SettingsError:
    """Make the error for an address that cannot be bound."""
    return SettingsError(": ".join(why_not_bound(host, port, error)))


def why_not_bound(host: str, port: int, error: OSError | UnicodeError) -> tuple[str, str]:
    """Explain why an address cannot be bound: returns the setting to change, and a sentence."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        return (
            "PORT",
            f"{host}:{port} is in use, perhaps by another Conductor; stop it or choose another port.",
        )
    if number in (errno.EACCES, errno.EPERM):
        hint = f"; ports below {_PRIVILEGED} need privileges" if port < _PRIVILEGED else ""
        return "PORT", f"permission to listen on {host}:{port} was denied{hint}."
    if isinstance(error, socket.gaierror | UnicodeError):  # UnicodeError: too long a name for the resolver
        return "HOST", f"{host} is not a known name or address; use 127.0.0.1 for this machine only."
    if number == errno.EADDRNOTAVAIL:
        return "HOST", f"{host} is not an address of this machine; use 0.0.0.0 for all its addresses."
    return "HOST", f"cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}."
