"""The version of the package, and its folder."""

from pathlib import Path

__version__ = "0.1.0"
PACKAGE = Path(__file__).parent
