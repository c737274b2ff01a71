"""Pure tests: no sockets and no other program."""
