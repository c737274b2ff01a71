"""Tests of conductor.observers."""
