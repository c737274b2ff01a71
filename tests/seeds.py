"""Random parts of tests, which can be drawn again."""

from __future__ import annotations

import os
import random
import secrets
import sys


def seeded() -> random.Random:
    """Return a source of numbers, and print its seed, which the environment variable SEED sets."""
    seed = int(os.environ.get("SEED") or secrets.randbelow(2**32))
    sys.stdout.write(f"SEED={seed}\n")
    return random.Random(seed)
