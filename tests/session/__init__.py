"""Tests of one conversation in virtual time."""
