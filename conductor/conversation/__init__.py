"""Sessions, their turns, and what is remembered of them. Nothing here knows of sockets."""
