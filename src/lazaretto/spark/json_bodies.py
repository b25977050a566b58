"""JSON bodies as values of a schema: what does not fit is told with the path to the field."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import pyarrow as pa

from lazaretto.errors import InvalidOption

_LARGEST_FLOAT = 3.4028234663852886e38
_PLAIN: Mapping[pa.DataType, Any] = {
    pa.bool_(): bool,
    # Beyond it, Arrow would make it infinite.
    pa.float32(): Annotated[float, msgspec.Meta(ge=-_LARGEST_FLOAT, le=_LARGEST_FLOAT)],
    pa.float64(): float,
    pa.string(): str,
    pa.binary(): bytes,
    pa.date32(): datetime.date,
}


def json_decoder(kind: pa.StructType) -> Callable[[bytes], Any]:
    """Return a function that makes a body a dict that fits a type. It raises ValueError with the path.

    Fields that the type does not have are left out; those that the body does not have are missing.
    Texts stand for binary (Base64), dates and timestamps (ISO 8601; UTC, if no zone is given).
    """
    decode = msgspec.json.Decoder(python_type(kind, "$")).decode

    def run(body: bytes) -> Any:
        try:
            return decode(body)
        except msgspec.ValidationError as error:
            text = str(error)
            raise ValueError(text if " - at `" in text else f"{text} - at `$`") from None
        except UnicodeDecodeError:
            raise ValueError(f"the body is not UTF-8 {_first_wrong(body)}- at `$`") from None
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"the body is not JSON: {error} - at `$`") from None

    return run


def _first_wrong(body: bytes) -> str:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return f"(byte {error.start}) "
    return ""


def python_type(kind: pa.DataType, path: str) -> Any:
    """Return the type that msgspec decodes to for a type of Arrow. Raises InvalidOption: it has none."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pa.types.is_integer(kind):
        end = 1 << (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-end, le=end - 1)]
    if pa.types.is_timestamp(kind):
        return datetime.datetime
    if pa.types.is_decimal(kind):
        return decimal.Decimal
    if pa.types.is_list(kind):
        return list[_or_null(kind.value_field, f"{path}[]")]  # type: ignore[misc]
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return dict[str, _or_null(kind.item_field, f"{path}{{}}")]  # type: ignore[misc]
    if pa.types.is_struct(kind):
        fields = {field.name: _field(field, f"{path}.{field.name}") for field in kind}
        return TypedDict("object", fields)  # type: ignore[operator]
    raise InvalidOption(f"the schema of bodies has a type that JSON cannot give: {kind}, at {path}")


def _or_null(field: pa.Field, path: str) -> Any:
    kind = python_type(field.type, path)
    return kind | None if field.nullable else kind


def _field(field: pa.Field, path: str) -> Any:
    kind = _or_null(field, path)
    return NotRequired[kind] if field.nullable else kind
