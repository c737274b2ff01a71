"""What `scripts/bench` runs: light clients, the servers under test, and the scenarios."""
