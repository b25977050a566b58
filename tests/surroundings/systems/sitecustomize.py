"""Has each Python that finds this folder on its path imitate the system that the environment names."""

from __future__ import annotations

import importlib
import os

_systems = importlib.import_module("other_systems")
if (_name := os.environ.get(_systems.NAMED)) is not None:
    _systems.imitate(_name)
