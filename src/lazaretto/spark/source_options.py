"""Options of the Spark data source: text by name, as Spark hands them over, checked in one place."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from lazaretto.claims import DEFAULT_LEASE, MOST_ROWS
from lazaretto.errors import InvalidOption
from lazaretto.model.checks import option_set, refuse_unknown, seconds, shown, whole
from lazaretto.spark.views import VIEWS
from lazaretto.store.addresses import absolute
from lazaretto.store.contract.claim_contract import MOST_SHARDS

#: Options of a stream of claims.
STREAM_OPTIONS = ("max_rows", "max_bytes", "shards", "lease")
#: Options that Spark itself adds.
_OF_SPARK = ("path", "checkpointlocation", "queryname")


@option_set
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """Everything that can be set on `format("lazaretto")`.

    `store`: a store's URL, or "env:NAME" for one that stands in an environment variable, so that it
    is in no plan and no log. `queue`: its path. `consumer`: the name under which claims are taken.
    `max_rows`, `max_bytes`: of one micro-batch. `shards`: tasks of one micro-batch. `lease`: seconds
    a claim stays open without a sign of life of its driver. `view`: what a batch read
    shows, which a stream does not have. `shards_only`: a stream has a row for each shard, without messages.
    """

    store: str
    queue: str
    consumer: str = "spark"
    max_rows: int = 100_000
    max_bytes: int = 256 * 1024 * 1024
    shards: int = 2
    lease: float = DEFAULT_LEASE
    view: str = ""
    shards_only: bool = False

    def __post_init__(self) -> None:
        for name in ("store", "queue", "consumer"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise InvalidOption(f"expected option {name} to be text, got {shown(value)}")
        if not self.store.startswith("env:"):
            # Tasks, and what is read later, may be in another folder.
            object.__setattr__(self, "store", absolute(self.store))
        if self.view and self.view not in VIEWS:
            raise InvalidOption(
                f"expected option view to be one of {', '.join(VIEWS)}, got {shown(self.view)}"
            )
        whole("max_rows", self.max_rows, 1, MOST_ROWS)
        whole("max_bytes", self.max_bytes, 1, 1 << 50)
        whole("shards", self.shards, 1, MOST_SHARDS)
        object.__setattr__(self, "lease", seconds("lease", self.lease, 1.0, 86_400.0))

    def url(self) -> str:
        """Return the store's URL, looked up where it is not told."""
        if not self.store.startswith("env:"):
            return self.store
        name = self.store.removeprefix("env:")
        url = os.environ.get(name)
        if not url:
            raise InvalidOption(
                f"expected the environment variable {name} to hold a store's URL, it is not set"
            )
        return absolute(url)


def _flag(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


_READERS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str, "bool": _flag}
_FIELDS = {field.name: _READERS[str(field.type)] for field in dataclasses.fields(SparkOptions)}


def parse(options: Mapping[str, str]) -> SparkOptions:
    """Return the options that Spark hands over. Raises InvalidOption."""
    given = {name.lower(): value for name, value in options.items()}
    for name in _OF_SPARK:
        given.pop(name, None)
    # Spark's own options are written likeThis; both are understood.
    names = {name.replace("_", ""): name for name in _FIELDS}
    values: dict[str, Any] = {}
    for name, text in given.items():
        known = names.get(name.replace("_", ""))
        if known is None:
            refuse_unknown([name], _FIELDS, "the options of format('lazaretto')")
            continue
        try:
            values[known] = _FIELDS[known](text)
        except KeyError:
            raise InvalidOption(f"expected option {known} to be true or false, got {shown(text)}") from None
        except ValueError:
            raise InvalidOption(f"expected option {known} to be a number, got {shown(text)}") from None
    missing = [name for name in ("store", "queue") if name not in values]
    if missing:
        raise InvalidOption(f"format('lazaretto') needs the option {missing[0]!r}")
    return SparkOptions(**values)
