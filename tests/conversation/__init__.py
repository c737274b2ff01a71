"""Tables of what the pure modules decide: literal states, and the literal records they give."""
