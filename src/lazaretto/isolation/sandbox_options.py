"""Options of a sandbox."""

from __future__ import annotations

import dataclasses
from typing import Literal

from lazaretto.model.options import (
    Duration,
    OptionalDuration,
    choice,
    duration,
    integer,
    option,
    option_set,
    optional,
    size,
)

Mode = Literal["auto", "fork", "spawn"]
_MODES = {mode: mode for mode in ("auto", "fork", "spawn")}


@option_set
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SandboxOptions:
    """Limits of a sandbox.

    Options:
        deadline: Time that an item may take.
        memory: Memory that an item may add to the warm process, counted as address space.
        max_result: Maximum size of one result.
        max_output: Maximum size of what the items of one batch print. The rest is left out, and a
            note says so.
        mode: How a dead process is replaced: `fork` copies a warm process, `spawn` starts a new one,
            `auto` forks where that is safe.
        refork_every: Restart the process after this many items.
        setup_timeout: Time that the setup may take.
    """

    deadline: OptionalDuration = option(30.0, optional(duration(0.001)))
    memory: int | None = option(2_147_483_648, optional(size(1 << 20, 1 << 50)))
    max_result: int = option(16_777_216, size(0, 1 << 31))
    max_output: int = option(65_536, size(0, 1 << 31))
    mode: Mode = option("auto", choice(_MODES))
    refork_every: int | None = option(None, optional(integer(1, 1 << 31)))
    setup_timeout: Duration = option(60.0, duration(0.001))
