"""Tools of MCP servers: the operator's file, a supervised connection to each server, and the toolset."""
