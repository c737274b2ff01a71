"""The plugins of this package against the suites of `conductor.testing`."""
