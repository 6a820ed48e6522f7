"""From a type hint to its form."""

from __future__ import annotations

import enum
import functools
import os
import types
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin

from fnroll.dialogue.context import ToolContext
from fnroll.dialogue.forms.constraints import constrain
from fnroll.dialogue.forms.containers import CONTAINERS, container_form
from fnroll.dialogue.forms.form import Form, FormError, name_type
from fnroll.dialogue.forms.objects import object_form
from fnroll.dialogue.forms.scalars import SCALARS, enum_form, literal_form
from fnroll.dialogue.forms.unions import union_form

ALLOWED = (
    "allowed are str, int, float, bool, None, Any, Enum, Literal, date, datetime, time, UUID, Decimal, "
    "Path, list, tuple, set, frozenset, deque, dict, Sequence, Iterable, Mapping, dataclass, NamedTuple, "
    "TypedDict, pydantic models, and unions and Annotated of these; "
    "for anything else give a schema to Tool.from_schema"
)
"""What a hint may be, for errors."""


def find_form(hint: Any) -> Form:
    """Find out what a type is in JSON.

    Args:
      hint: a resolved type hint, no string.

    Returns:
      Its form.

    Raises:
      FormError: it has none; the message names the part of the hint that has none.
    """
    return _find(hint, ())


def _find(hint: Any, outer: tuple[Any, ...]) -> Form:
    """`outer` are the classes and aliases that the hint stands in."""
    find = functools.partial(_find, outer=outer)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return constrain(find(arguments[0]), arguments[1:])
    if isinstance(hint, NewType):
        return find(hint.__supertype__)
    if type(hint).__name__ == "TypeAliasType":  # of a `type` statement, which Python 3.11 does not have
        return _find(hint.__value__, _enter(hint, outer))
    if origin in (Union, types.UnionType):
        return union_form([find(member) for member in arguments], [name_type(member) for member in arguments])
    if origin is Literal:
        return literal_form(arguments)
    if origin is os.PathLike:
        return SCALARS[origin]
    if origin in CONTAINERS:
        # `tuple[()]` is the empty tuple; `Tuple`, without brackets, is one of anything.
        is_bare = not arguments and not (origin is tuple and isinstance(hint, types.GenericAlias))
        return container_form(origin, None if is_bare else arguments, find)
    return _find_class(hint, outer)


def _find_class(hint: Any, outer: tuple[Any, ...]) -> Form:
    if hint is None:
        hint = type(None)
    if isinstance(hint, type) and hint in CONTAINERS:
        return container_form(hint, None, find_form)
    try:
        if hint in SCALARS:
            return SCALARS[hint]
    except TypeError:  # a hint without a hash
        pass
    if hint is ToolContext:
        raise FormError("a ToolContext can only be a parameter of its own")
    found = None
    if isinstance(hint, type) and get_origin(hint) is None:
        if issubclass(hint, enum.Enum):
            return enum_form(hint)
        found = object_form(hint, functools.partial(_find, outer=_enter(hint, outer)))
    if found is None:
        raise FormError(f"{name_type(hint)} has no form in JSON")
    return found


def _enter(hint: Any, outer: tuple[Any, ...]) -> tuple[Any, ...]:
    if hint in outer:
        raise FormError(f"{hint.__name__} holds itself, which has no finite schema")
    return (*outer, hint)
