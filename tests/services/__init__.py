"""Redis and PostgreSQL on loopback, for tests and benchmarks."""
