"""Tests of MCP tools against real servers."""
