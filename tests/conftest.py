"""Settings shared by all tests."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("tests", max_examples=60, deadline=None, derandomize=True, database=None)
settings.load_profile("tests")
