"""Log records as lines of JSON."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

#: What every log record has; whatever else one has is a field.
_STANDARD: Final = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})


class JsonFormatter(logging.Formatter):
    """Formats a log record as one line of JSON, with its fields (`extra`) under their own names.

    `time` (ISO 8601, UTC), `level`, `logger` and `message` come first; an exception is `exception`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line of JSON."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        fields = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        text = fields.pop("text", None)
        told: dict[str, Any] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage() if text is None else text,
            **{name: value for name, value in fields.items() if value is not None},
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        try:
            return msgspec.json.encode(told, enc_hook=str).decode()
        except (UnicodeEncodeError, TypeError, ValueError):
            # A text that JSON cannot have, or a mapping with keys of its own.
            return msgspec.json.encode({name: ascii(value) for name, value in told.items()}).decode()
