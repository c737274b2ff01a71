"""Tests of observers."""
