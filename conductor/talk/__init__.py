"""The terminal client: what `python -m conductor talk` runs."""
