"""Tests of tools and the gate."""
