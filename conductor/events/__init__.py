"""The wire: what a client and the server say to each other, and how it becomes bytes, all of it pure."""
