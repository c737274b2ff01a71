"""Conversations over real sockets."""
