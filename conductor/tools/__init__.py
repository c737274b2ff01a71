"""Tools: what they are, where they run, and the one gate they pass."""
