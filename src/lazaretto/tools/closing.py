"""Objects that a `with` block closes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """Something that is closed at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None:
        """Give up what it holds. Closing it again changes nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
