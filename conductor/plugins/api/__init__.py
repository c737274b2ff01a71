"""The HTTP API of the app's backend."""
