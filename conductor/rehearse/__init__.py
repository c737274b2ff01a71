"""``conductor rehearse``: conversations as tests; see docs/rehearse.md."""
