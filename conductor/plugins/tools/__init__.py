"""Tools that run in the server."""
