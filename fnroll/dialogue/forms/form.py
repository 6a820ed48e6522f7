"""The form of a type, and what is said when a type has none or a value does not fit."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fnroll.dialogue.schema import shorten

T = TypeVar("T")

EXACT, PARSED, GENERAL, ANYTHING = range(4)
"""The order in which the members of a union are tried: a date before any text."""


class FormError(TypeError):
    """A type that has no form in JSON; the message says which, and why."""


class Misfit(ValueError):
    """A JSON value that is no value of the type."""

    def __init__(self, clause: str, path: tuple[str | int, ...] = ()) -> None:
        """Say what is wrong.

        Args:
          clause: what follows the name of the value, such as `must be a date`.
          path: from the outermost value to the one that is wrong.
        """
        super().__init__(clause)
        self.clause, self.path = clause, path


@dataclass(frozen=True)
class Form:
    """What a type is in JSON."""

    schema: dict[str, Any]
    """What the model reads; must not be changed."""
    read: Callable[[Any], Any]
    """Makes a value of the type from a JSON value, or raises `Misfit`; strict: text is no number."""
    rank: int = EXACT
    """When it is tried as a member of a union; the smallest first."""
    kind: type | None = None
    """Python's type of the JSON values that it takes as they are; tells numbers apart in a union."""
    is_named: bool = False
    """Whether code may ask which of several such types a value has, as it does for classes."""
    is_hashable: bool = True
    """Whether its values can be members of a set."""
    is_key: bool = False
    """Whether the text of a JSON object's key can hold its values."""

    def takes(self, value: Any) -> bool:
        """Say whether a JSON value is one of the type."""
        try:
            self.read(value)
        except Misfit:
            return False
        return True


def wrong(wanted: str, value: object) -> Misfit:
    """Make the error for a value that is not what is wanted, such as `a date`."""
    return Misfit(f"must be {wanted}, but is {shorten(value)}")


def read_at(step: str | int, read: Callable[[Any], T], value: Any) -> T:
    """Read a part of a value.

    Args:
      step: the part's key or index, for the path of an error.
      read: of a form.
      value: the part.

    Returns:
      The value of the type.

    Raises:
      Misfit: it does not fit.
    """
    try:
        return read(value)
    except Misfit as error:
        raise Misfit(error.clause, (step, *error.path)) from error


def name_type(hint: Any) -> str:
    """Write a type hint as in source code, without `typing.`."""
    return inspect.formatannotation(hint).replace("typing.", "")
