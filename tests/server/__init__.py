"""Tests over sockets on loopback."""
