"""Suites that plugins have to pass; the extra ``testing`` installs what the suites need."""

import pytest

for kind in ("auth", "judge", "model", "store", "toolset"):
    pytest.register_assert_rewrite(f"conductor.testing.{kind}")
