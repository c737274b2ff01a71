"""Suites that plugins have to pass, importable by their packages' tests."""

import pytest

for kind in ("auth", "judge", "model", "store", "toolset"):
    pytest.register_assert_rewrite(f"tests.contract.{kind}")
