"""Models, stores, tools, judges and authentication that come in by entry points."""
