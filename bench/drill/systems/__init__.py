"""The systems under the drill, one module each, found by name: a column of the table each, in this order."""

from __future__ import annotations

from bench.drill.systems.celery import CeleryDefaultsDrilled, CeleryDrilled, CeleryRetryDrilled
from bench.drill.systems.contract import Drilled
from bench.drill.systems.huey import HueyDrilled
from bench.drill.systems.lazaretto import LazarettoDrilled, LazarettoSandboxDrilled
from bench.drill.systems.procrastinate import ProcrastinateDrilled, ProcrastinateRescueDrilled

SYSTEMS: dict[str, type[Drilled]] = {
    system.name: system
    for system in (
        LazarettoSandboxDrilled,
        LazarettoDrilled,
        CeleryDrilled,
        CeleryRetryDrilled,
        CeleryDefaultsDrilled,
        HueyDrilled,
        ProcrastinateDrilled,
        ProcrastinateRescueDrilled,
    )
}
