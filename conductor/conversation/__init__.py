"""Sessions and their turns; nothing here depends on sockets."""
