"""The broker does what the model says, whatever is done to it in whatever order."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from servers import Server

from .machine import BrokerMachine

SOAK_STEPS = 20_000

_CHECKS = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
settings.register_profile(
    "gate",
    max_examples=150,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    report_multiple_bugs=False,
    database=None,
    suppress_health_check=_CHECKS,
)
settings.register_profile(
    "soak",
    # Said here, because Hypothesis repeats itself by default where it finds a CI server's environment.
    derandomize=False,
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    database=None,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=_CHECKS,
    phases=(Phase.generate, Phase.shrink),
)


def soaking() -> bool:
    """Return whether this is the long form, in which every run is different."""
    return os.environ.get("LAZARETTO_SOAK") == "1"


def test_broker_and_model_agree() -> None:
    """A short run, the same every time; with LAZARETTO_SOAK=1 at least 20,000 steps, others every time."""
    soak = soaking()
    wanted = SOAK_STEPS if soak else 2_000
    BrokerMachine.steps = 0
    run_state_machine_as_test(BrokerMachine, settings=settings.get_profile("soak" if soak else "gate"))
    while soak and BrokerMachine.steps < wanted:
        run_state_machine_as_test(BrokerMachine, settings=settings.get_profile("soak"))
        print(f"model: {BrokerMachine.steps:,} steps", flush=True)
    print(f"model: {BrokerMachine.steps:,} steps run in all")
    assert BrokerMachine.steps >= wanted


def test_so_do_they_on_partitioned_queues() -> None:
    machine = type("PartitionedMachine", (BrokerMachine,), {"partitions": 3})
    profile = settings.get_profile("soak" if soaking() else "gate")
    run_state_machine_as_test(machine, settings=settings(profile, max_examples=400 if soaking() else 15))


def test_so_do_they_on_partitioned_queues_on_a_server(postgres: Server) -> None:
    machine = type("ServedPartitionedMachine", (BrokerMachine,), {"partitions": 3, "server": postgres.url})
    profile = settings.get_profile("soak" if soaking() else "gate")
    run_state_machine_as_test(machine, settings=settings(profile, max_examples=200 if soaking() else 4))


def test_so_does_one_on_a_server(postgres: Server) -> None:
    """The same on PostgreSQL, for fewer steps."""
    machine = type("ServedMachine", (BrokerMachine,), {"server": postgres.url})
    profile = settings.get_profile("soak" if soaking() else "gate")
    examples = 200 if soaking() else 10
    run_state_machine_as_test(machine, settings=settings(profile, max_examples=examples))
