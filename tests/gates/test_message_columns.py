"""Columns of messages are declared once: queries name them by parts, and peek shows what senders set."""

from __future__ import annotations

import re
import typing
from pathlib import Path

import msgspec

import lazaretto
from lazaretto.engine.command import hints_of
from lazaretto.model.messages import PeekedMessage, SentColumns

QUERIES = (Path(lazaretto.__file__).parent / "store").glob("*/*.sql")
_WRITTEN = re.compile(r"(?:INTO|COPY) lazaretto_messages\s+\(([^)]*)\)")
#: What is new to the engine, and has nothing in columns that senders set: such messages go the longer way.
BY_HAND = 1


def test_queries_that_write_messages_name_their_columns_by_parts() -> None:
    written = [columns for file in QUERIES for columns in _WRITTEN.findall(file.read_text("utf-8"))]
    assert len(written) > BY_HAND
    assert sum("[new_columns]" not in one and "[past_columns]" not in one for one in written) == BY_HAND


def test_what_senders_set_is_told_of_and_shown() -> None:
    shown, types = typing.get_type_hints(PeekedMessage), typing.get_type_hints(SentColumns)
    for field in msgspec.structs.fields(SentColumns):
        assert field.default is None
        assert types[field.name] in (str | None, int | None)
        assert shown.get(field.name) == types[field.name], "PeekedMessage repeats the field"
        assert field.name in hints_of(SentColumns), "the docstring says what it is"
