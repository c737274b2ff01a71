"""Which pages may connect, and the address of a client behind proxies."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.origins import Network, client_address, origin_allowed

ALLOWED = ("https://app.example.com", "http://localhost:3000")
LOCAL = "127.0.0.1:8080"
ALWAYS: list[tuple[str | None, str | None, tuple[str, ...]]] = [
    (None, "evil.com", ()),
    ("null", "h", ("null",)),
    *(
        (f"{scheme}://{host}", host, allowed)
        for scheme in ("http", "HTTP", "https")
        for host in (LOCAL, "localhost:8080", "[::1]:8080", "localhost")
        for allowed in ((), ALLOWED)
    ),
    *((origin, "h", ALLOWED) for origin in ALLOWED),
]
NEVER: list[tuple[str | None, str | None, tuple[str, ...]]] = [
    # An origin is compared as a whole.
    *(
        (origin, "other", ALLOWED)
        for origin in (
            "http://app.example.com",
            "https://app.example.com:8443",
            "https://app.example.com.evil.com",
            "https://evil.com/https://app.example.com",
            "https://evilapp.example.com",
            "http://localhost:5173",
        )
    ),
    *(
        (origin, host, ())
        for host in (LOCAL, None)
        for origin in (
            *(
                "null",
                "",
                "localhost",
                "file://",
                "ftp://localhost",
                "http://",
                "http://[::1",
                "http://\uff0f",
            ),
            *("http://localhost.evil.com", "http://localhost@evil.com", "http://evil.com/localhost"),
            *("http://0.0.0.0", "http://192.168.1.7:8080", "http://\u2100"),
            # Other ports of this machine are other programs.
            *("http://localhost:3000", "http://localhost", "http://127.0.0.1:8081", "http://[::1]:8080"),
        )
    ),
    *(
        ("http://evil.com:8080", host, ())
        for host in ("evil.com", "evil.com:80", "evil.com:9090", "x.evil.com:8080", "")
    ),
]
# A page can have its own name resolve to this machine, and then its origin is the very host.
WITH_TOKENS: list[tuple[str | None, str | None, tuple[str, ...]]] = [
    ("http://evil.com:8080", "evil.com:8080", ()),
    ("https://evil.com", "evil.com", ()),
    ("http://[fd00::5]:8080", "[fd00::5]:8080", ()),
]


@pytest.mark.parametrize(
    ("request_from", "tokens", "expected"),
    [
        *((row, tokens, True) for row in ALWAYS for tokens in (True, False)),
        *((row, tokens, False) for row in NEVER for tokens in (True, False)),
        *((row, tokens, tokens) for row in WITH_TOKENS for tokens in (True, False)),
    ],
)
def test_a_page_is_allowed_by_its_origin(request_from: Any, tokens: bool, expected: bool) -> None:
    assert origin_allowed(*request_from, tokens=tokens) == expected


@given(st.text(max_size=30), st.text(max_size=10))
def test_any_text_is_handled(origin: str, host: str) -> None:
    for text in (origin, f"http://{origin}", f"http://[{origin}]"):
        assert origin_allowed(text, host, (), tokens=False) in (True, False)
        assert origin_allowed(text, host, (text,), tokens=False)


LAN = ipaddress.ip_network("10.0.0.0/8")


@pytest.mark.parametrize(
    ("peer", "forwarded", "trusted", "address"),
    [
        ("203.0.113.7", [], [], None),
        ("203.0.113.7", ["198.51.100.1"], [LAN], "203.0.113.7"),
        ("10.0.0.1", ["198.51.100.1"], [LAN], "198.51.100.1"),
        ("10.0.0.1", ["192.0.2.9, 198.51.100.1"], [LAN], "198.51.100.1"),
        ("10.0.0.1", ["192.0.2.9", "198.51.100.1, 10.1.1.1"], [LAN], "198.51.100.1"),
        ("10.0.0.1", ["nonsense"], [LAN], "10.0.0.1"),
        ("10.0.0.1", [], [LAN], "10.0.0.1"),
        ("::ffff:10.0.0.1", ["2001:db8::1"], [LAN], "2001:db8::1"),
        ("a-unix-socket", ["198.51.100.1"], [LAN], None),
    ],
)
def test_the_address_comes_from_the_last_untrusted_hop(
    peer: str, forwarded: list[str], trusted: list[Network], address: str | None
) -> None:
    assert client_address(peer, forwarded, trusted) == address
