"""Suites that plugins have to pass, importable by their packages' tests."""

import pytest

pytest.register_assert_rewrite("tests.contract.store")
