"""Types whose values are one JSON scalar: numbers, texts, and what is written as a text."""

from __future__ import annotations

import dataclasses
import enum
import os
import re
from collections.abc import Callable, Iterable
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path, PosixPath, PurePath, PurePosixPath
from typing import Any
from uuid import UUID

from fnroll.dialogue.forms.form import ANYTHING, GENERAL, PARSED, Form, FormError, wrong
from fnroll.dialogue.schema import shorten

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_JSON_NAMES = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}


def _read_int(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    # JSON has one kind of number: 3.0 and 3e0 are whole.
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise wrong("a whole number", value)


def _read_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong("a number", value)
    try:
        return float(value)
    except OverflowError as error:
        raise wrong("a number that a float can hold", value) from error


def _reader(kind: type, wanted: str) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, kind):
            raise wrong(wanted, value)
        return value

    return read


def _parser(wanted: str, parse: Callable[[str], Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, str):
            raise wrong(wanted, value)
        try:
            return parse(value)
        except (ValueError, ArithmeticError) as error:
            raise wrong(wanted, value) from error

    return read


def _matching(pattern: re.Pattern[str], text: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(text)
    return text


def _datetime(text: str) -> datetime:
    if _DATE.fullmatch(text):  # a date alone does not say when
        raise ValueError(text)
    return datetime.fromisoformat(text)


def _uuid(text: str) -> UUID:
    found = UUID(text)
    if str(found) != text.lower():
        raise ValueError(text)
    return found


def _text_form(format_name: str, wanted: str, parse: Callable[[str], Any], rank: int = PARSED) -> Form:
    schema = {"type": "string", "format": format_name}
    return Form(schema, _parser(wanted, parse), rank, is_key=True)


SCALARS: dict[Any, Form] = {
    bool: Form({"type": "boolean"}, _reader(bool, "true or false"), kind=bool, is_key=True),
    int: Form({"type": "integer"}, _read_int, kind=int, is_key=True),
    float: Form({"type": "number"}, _read_float, kind=float, is_key=True),
    str: Form({"type": "string"}, _reader(str, "a string"), GENERAL, str, is_key=True),
    type(None): Form({"type": "null"}, _reader(type(None), "null"), is_key=True),
    Any: Form({}, lambda value: value, ANYTHING, is_key=True),
    object: Form({}, lambda value: value, ANYTHING, is_key=True),
    date: _text_form(
        "date", "a date such as 2026-12-31", lambda text: date.fromisoformat(_matching(_DATE, text))
    ),
    datetime: _text_form("date-time", "a date and time such as 2026-12-31T23:59:00", _datetime),
    time: _text_form("time", "a time of day such as 23:59:00", time.fromisoformat),
    UUID: _text_form("uuid", "a UUID such as 123e4567-e89b-12d3-a456-426614174000", _uuid),
    Decimal: _text_form(
        "decimal", "a string with a decimal number", lambda text: Decimal(_matching(_DECIMAL, text))
    ),
    os.PathLike: _text_form("path", "a path", Path, GENERAL),
    **{
        kind: _text_form("path", "a path", kind, GENERAL)
        for kind in (Path, PosixPath, PurePath, PurePosixPath)
    },
}
"""The form of each type; a `Path` takes any text, as a `str` does."""


def choice_form(name: str, choices: Iterable[tuple[Any, Any]]) -> Form:
    """Make the form of a type with a few values, each written as a JSON scalar.

    Args:
      name: of the type, for errors.
      choices: the JSON value and the Python value of each.

    Returns:
      The form.

    Raises:
      FormError: there is no value, or one that is no JSON scalar.
    """
    choices = tuple(choices)
    written = [value for value, _ in choices]
    if not written:
        raise FormError(f"{name} has no values")
    for value in written:
        if type(value) not in _JSON_NAMES:
            raise FormError(f"{name} has the value {value!r}, which is no str, int, float, bool or None")

    def read(value: Any) -> Any:
        for known, meant in choices:
            if _is_same(known, value):
                return meant
        raise wrong(f"one of {', '.join(map(shorten, written))}", value)

    types = list(dict.fromkeys(_JSON_NAMES[type(value)] for value in written))
    return Form({"type": types[0] if len(types) == 1 else types, "enum": written}, read, is_key=True)


def enum_form(kind: type[enum.Enum]) -> Form:
    """Make the form of an Enum class, whose members are written as their values."""
    form = choice_form(f"the Enum {kind.__name__}", ((member.value, member) for member in kind))
    return dataclasses.replace(form, is_named=True)


def literal_form(values: tuple[Any, ...]) -> Form:
    """Make the form of a `Literal`."""
    return choice_form(
        "the Literal",
        ((value.value if isinstance(value, enum.Enum) else value, value) for value in values),
    )


def _is_same(known: Any, value: Any) -> bool:
    """Whether two JSON scalars are equal: 1 and 1.0 are, 1 and true are not."""
    return isinstance(known, bool) == isinstance(value, bool) and bool(known == value)
