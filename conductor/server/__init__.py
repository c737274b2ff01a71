"""The server: access, connections, rate limits, and the registry of sessions."""
