"""Tests of server tools."""
