"""Dialogs do what their model says, whatever two services do to each other, in order and once."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from servers import Server
from stock import used_store

from .dialogs import DialogMachine
from .test_model import soaking


def _settings(examples: int) -> settings:
    return settings(settings.get_profile("soak" if soaking() else "gate"), max_examples=examples)


def test_dialogs_and_model_agree(tmp_path: Path) -> None:
    """A short run, the same every time; others every time with LAZARETTO_SOAK=1."""

    class Machine(DialogMachine):
        number_of_stores = 0

        def fresh(self) -> str:
            type(self).number_of_stores += 1
            self.url = f"sqlite:///{tmp_path / f'{self.number_of_stores}.db'}"
            return self.url

    run_state_machine_as_test(Machine, settings=_settings(500 if soaking() else 60))
    print(f"model of dialogs: {Machine.steps:,} steps run in all")
    assert Machine.steps >= 1_000


def test_so_do_those_on_a_server(postgres: Server) -> None:
    """The same on PostgreSQL, for fewer steps."""

    class Machine(DialogMachine):
        def fresh(self) -> str:
            self.stack = contextlib.ExitStack()
            self.url = self.stack.enter_context(used_store(postgres.url))
            return self.url

        def teardown(self) -> None:
            super().teardown()
            self.stack.close()

    # Nothing is made smaller: that takes long on a server, and a file shows the same.
    phases = (Phase.generate,)
    run_state_machine_as_test(Machine, settings=settings(_settings(50 if soaking() else 10), phases=phases))
    assert Machine.steps >= 150
