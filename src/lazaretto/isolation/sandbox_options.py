"""What can be set on a sandbox, checked in one place."""

from __future__ import annotations

import dataclasses
from typing import Literal

from lazaretto.errors import InvalidOption
from lazaretto.model.checks import option_set, seconds, shown, whole

Mode = Literal["auto", "fork", "spawn"]
_MODES = ("auto", "fork", "spawn")


@option_set
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SandboxOptions:
    """Limits of a sandbox.

    `deadline`: seconds an item may take; None for no end. `memory`: bytes of address space that an
    item may add to the warm process; None for no limit. `max_result`: bytes of one result.
    `max_output`: bytes that the items of one batch may print; what is more is left out, and that is
    said. `mode`: "fork" replaces a dead process by a copy of a warm one, "spawn" by a new one, "auto"
    forks where that is safe. `refork_every`: a fresh process after so many items. `setup_timeout`:
    seconds that the setup may take.
    """

    deadline: float | None = 30.0
    memory: int | None = 2_147_483_648
    max_result: int = 16_777_216
    max_output: int = 65_536
    mode: Mode = "auto"
    refork_every: int | None = None
    setup_timeout: float = 60.0

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        if self.deadline is not None:
            set_(self, "deadline", seconds("deadline", self.deadline, 0.001))
        if self.memory is not None:
            whole("memory", self.memory, 1 << 20, 1 << 50)
        whole("max_result", self.max_result, 0, 1 << 31)
        whole("max_output", self.max_output, 0, 1 << 31)
        if self.refork_every is not None:
            whole("refork_every", self.refork_every, 1, 1 << 31)
        set_(self, "setup_timeout", seconds("setup_timeout", self.setup_timeout, 0.001))
        if self.mode not in _MODES:
            raise InvalidOption(f"expected mode to be one of {', '.join(_MODES)}, got {shown(self.mode)}")
