"""Stores, and servers of them, for tests of what is promised about security."""

from web.conftest import api, broker, pytest_generate_tests, served, url

__all__ = ["api", "broker", "pytest_generate_tests", "served", "url"]
