"""Tests of MCP tools."""
