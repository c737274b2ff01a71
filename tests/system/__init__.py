"""Tests that need another program, or take long; `scripts/test --extended` runs them."""
