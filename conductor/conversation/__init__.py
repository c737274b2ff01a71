"""Sessions, their turns, and what is remembered of them; nothing here knows of sockets."""
