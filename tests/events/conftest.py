"""How the generated tests run: no deadline a case, since the machine may be busy with other things."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("conductor", deadline=None, print_blob=True)
settings.load_profile("conductor")
