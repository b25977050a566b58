"""Answers to requests that are refused. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lazaretto import errors
from lazaretto.servicebus.answers import condition_of, description_of, status_of

#: Which of Service Bus's subcodes goes with a status, and what it says.
_SUBCODES: Final = {
    400: "SubCode=40000. Bad Request.",
    404: "SubCode=40400. Not Found. The Operation doesn't exist.",
    409: "SubCode=40900. Conflict.",
}


class Refusal(Exception):
    """A request is not done: the status, and what the client is told."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


def refusal_of(error: BaseException, sees: Callable[[str], bool]) -> Refusal:
    """Return how a client is told of an error. `sees`: which other entities it may be told of."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, errors.InvalidPath):
        return Refusal(400, str(error))
    return Refusal(status_of(condition_of(error)), description_of(error, sees))


def detail_of(refusal: Refusal) -> str:
    """Return what stands in an error's body."""
    subcode = _SUBCODES.get(refusal.status)
    return refusal.detail if subcode is None else f"{subcode} {refusal.detail}"
