"""Conductor: a WebSocket server between a voice app and a language model."""

__version__ = "0.1.0"
