"""How generated tests run: without a deadline, as machines may be busy, and half the usual examples."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("conductor", deadline=None, print_blob=True, max_examples=50)
settings.load_profile("conductor")
