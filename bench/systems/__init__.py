"""The systems under measurement, one module each, found by name."""

from __future__ import annotations

from typing import Any

from bench.systems.contract import System
from bench.systems.lazaretto import LazarettoServedSystem, LazarettoStrictSystem, LazarettoSystem
from bench.systems.litequeue import LitequeueSystem
from bench.systems.pgmq import PgmqSystem
from bench.systems.rabbitmq import RabbitmqSystem
from bench.systems.redis import RedisSystem

SYSTEMS: dict[str, type[System[Any]]] = {
    system.name: system
    for system in (
        LazarettoSystem,
        LazarettoStrictSystem,
        LitequeueSystem,
        RedisSystem,
        RabbitmqSystem,
        LazarettoServedSystem,
        PgmqSystem,
    )
}
