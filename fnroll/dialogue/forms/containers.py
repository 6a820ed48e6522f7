"""Types that hold others: lists, sets, tuples, mappings."""

from __future__ import annotations

import json
from collections import OrderedDict, abc, deque
from collections.abc import Callable
from typing import Any

from fnroll.dialogue.forms.form import GENERAL, PARSED, Form, FormError, Misfit, name_type, read_at, wrong
from fnroll.dialogue.schema import shorten

Find = Callable[[Any], Form]
"""Gives the form of a part."""

_LISTS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable), list),
    deque: deque,
}
_SETS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((set, abc.Set, abc.MutableSet), set),
    frozenset: frozenset,
}
_MAPPINGS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((dict, abc.Mapping, abc.MutableMapping), dict),
    OrderedDict: OrderedDict,
}
CONTAINERS = frozenset({*_LISTS, *_SETS, *_MAPPINGS, tuple})
"""The types, bare or as the origin of one with arguments. What is abstract arrives as list, set or dict."""


def container_form(kind: Any, arguments: tuple[Any, ...] | None, find: Find) -> Form:
    """Make the form of a container.

    Args:
      kind: one of `CONTAINERS`.
      arguments: what stands in its brackets; None if it has none.
      find: gives the form of a part.

    Returns:
      The form; an array for lists, sets and tuples, an object for mappings.

    Raises:
      FormError: a part has no form, or is none that a set or a key can hold.
    """
    if kind is tuple:
        return _tuple_form(arguments, find)
    parts = tuple(map(find, arguments or ()))
    if kind in _MAPPINGS:
        return _mapping_form(kind, arguments or (), parts)
    item = parts[0] if parts else None
    if kind in _SETS and item and not item.is_hashable:
        raise FormError(f"a set cannot hold {name_type((arguments or (None,))[0])}, which has no hash")
    schema: dict[str, Any] = {"type": "array"}
    if item:
        schema["items"] = item.schema
    if kind in _SETS:
        schema["uniqueItems"] = True
        return Form(schema, _set_reader(_SETS[kind], item), PARSED, is_hashable=kind is frozenset)
    make = _LISTS[kind]
    return Form(schema, lambda value: make(_items(value, item)), PARSED, is_hashable=False)


def _items(value: Any, item: Form | None) -> list[Any]:
    if not isinstance(value, list):
        raise wrong("a list", value)
    return [read_at(index, item.read, part) for index, part in enumerate(value)] if item else value


def _set_reader(make: Callable[..., Any], item: Form | None) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        items = _items(value, item)
        try:
            found = make(items)
        except TypeError as error:  # of a set of anything
            raise wrong("a list of single values", value) from error
        if len(found) != len(items):
            raise wrong("a list without duplicates", value)
        return found

    return read


def _tuple_form(arguments: tuple[Any, ...] | None, find: Find) -> Form:
    if arguments is None:
        return Form({"type": "array"}, lambda value: tuple(_items(value, None)), PARSED)
    if len(arguments) == 2 and arguments[1] is ...:
        item = find(arguments[0])
        schema: dict[str, Any] = {"type": "array", "items": item.schema}
        return Form(schema, lambda value: tuple(_items(value, item)), PARSED, is_hashable=item.is_hashable)
    parts = tuple(map(find, arguments))
    schema = {"type": "array"}
    if parts:
        schema["prefixItems"] = [part.schema for part in parts]
    is_hashable = all(part.is_hashable for part in parts)
    return Form(schema, lambda value: tuple(read_parts(value, parts)), is_hashable=is_hashable)


def read_parts(value: Any, parts: tuple[Form, ...]) -> list[Any]:
    """Read a list with one item for each part.

    Args:
      value: from JSON.
      parts: the forms of the items.

    Returns:
      The items, as many as parts.

    Raises:
      Misfit: it is no list, is too long or too short, or an item does not fit.
    """
    if not isinstance(value, list) or len(value) != len(parts):
        raise wrong(f"a list of {len(parts)} items", value)
    return [
        read_at(index, part.read, item) for index, (part, item) in enumerate(zip(parts, value, strict=True))
    ]


def _mapping_form(kind: Any, arguments: tuple[Any, ...], parts: tuple[Form, ...]) -> Form:
    make = _MAPPINGS[kind]
    schema: dict[str, Any] = {"type": "object"}
    if len(parts) != 2:
        return Form(schema, lambda value: make(_pairs(value)), GENERAL, is_hashable=False)
    key, item = parts
    if not key.is_key:
        raise FormError(f"the keys of a JSON object are text, which cannot hold {name_type(arguments[0])}")
    schema["additionalProperties"] = item.schema

    def read(value: Any) -> Any:
        found = make()
        for name, part in _pairs(value).items():
            own = _read_key(name, key)
            if own in found:
                raise Misfit(f"has two keys that mean {shorten(name)}")
            found[own] = read_at(name, item.read, part)
        return found

    return Form(schema, read, GENERAL, is_hashable=False)


def _pairs(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong("an object", value)
    return value


def _read_key(text: str, key: Form) -> Any:
    """Read a key: as the text that it is, or as the number, boolean or null that it spells."""
    try:
        return key.read(text)
    except Misfit as error:
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if json.dumps(value) != text or isinstance(value, str | list | dict):
            raise Misfit(f"has the key {shorten(text)}, which {error.clause.partition(', but')[0]}") from None
    try:
        return key.read(value)
    except Misfit as error:
        raise Misfit(f"has the key {shorten(text)}, which {error.clause.partition(', but')[0]}") from None
