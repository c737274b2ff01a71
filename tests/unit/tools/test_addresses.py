"""Addresses that tools may connect to: public ones, in any notation."""

from __future__ import annotations

import ipaddress

import pytest

from conductor.plugins.addresses import may_connect

FORBIDDEN = [
    *("127.0.0.1", "127.8.9.1", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
    *("169.254.169.254", "100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.1", "192.0.2.1"),
    *("192.0.0.192", "192.0.0.9", "192.0.0.170", "::ffff:192.0.0.192", "64:ff9b::c000:c0"),
    *("198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1"),
    *("255.255.255.255", "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12:3456::1", "ff02::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe"),
    *("2002:7f00:1::", "2002:c0a8:101::1", "2001:0:4136:e378:8000:63bf:80ff:fffe", "2001:db8::1"),
    *("fd00:ec2::254", "64:ff9b:1::a00:1", "64:ff9b:1:7f00:0:100::", "fec0::1", "::ffff:0:7f00:1"),
    *("192.88.99.1", "5f00::1", "3fff::1"),
]


@pytest.mark.parametrize("address", FORBIDDEN)
def test_a_private_address_is_forbidden(address: str) -> None:
    assert not may_connect(address)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]
)
def test_a_public_address_is_permitted(address: str) -> None:
    assert may_connect(address)


def test_a_network_of_the_operators_is_permitted() -> None:
    allowed = [ipaddress.ip_network("192.168.1.0/24")]
    assert may_connect("192.168.1.20", allowed)
    assert may_connect("::ffff:192.168.1.20", allowed)
    assert not may_connect("192.168.2.20", allowed)
