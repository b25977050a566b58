"""Which errors may pass, and whose fault they are."""

from __future__ import annotations

import pytest

from lazaretto import errors
from lazaretto.errors import LazarettoError
from lazaretto.host.patience import may_pass

LASTING = {
    "handler_error",
    "invalid_option",
    "not_allowed",
    "server_unsuitable",
    "store_corrupt",
    "store_foreign",
    "store_gone",
    "store_incomplete",
    "store_not_found",
    "store_outdated",
    "store_too_new",
}
KINDS = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, LazarettoError)
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_error_may_pass_or_never_does(kind: type[LazarettoError]) -> None:
    assert may_pass(kind.__new__(kind)) == (kind.code not in LASTING)


def test_what_is_no_error_of_ours_may_pass() -> None:
    assert may_pass(OSError(24, "Too many open files"))
    assert may_pass(RuntimeError("can't start new thread"))
    assert not may_pass(SystemExit())
