"""Tests of conductor.commands."""
