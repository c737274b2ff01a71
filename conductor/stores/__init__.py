"""Session stores: memory, SQLite, Redis and PostgreSQL."""
