"""The commands beside ``serve`` and ``talk``: they read the project and its settings, and report."""
