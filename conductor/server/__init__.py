"""Sockets: who may connect, what they send, and which session it is for."""
