"""One of several types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fnroll.dialogue.forms.form import Form, FormError, Misfit
from fnroll.dialogue.forms.kinds import find_kinds
from fnroll.dialogue.forms.scalars import SCALARS


def union_form(members: Sequence[Form], names: Sequence[str]) -> Form:
    """Make the form of a union.

    A value is read by the first member that takes it, the special ones before the general: a choice before a
    date, a date before any text, a tuple of two before a list, a class before a mapping, and a number by the
    type that is written like it; else in the order declared.

    Args:
      members: the forms.
      names: how errors name each.

    Returns:
      The form; its schema says `null` by `nullable`, as transformers does.

    Raises:
      FormError: two classes among the members cannot be told apart in JSON.
    """
    _check_apart(members, names)

    def read(value: Any) -> Any:
        errors = []
        for member in sorted(members, key=lambda m: (m.rank, m.kind is not type(value))):
            try:
                return member.read(value)
            except Misfit as error:
                errors.append(error)
        # The deepest finding belongs to the member that was meant.
        raise max(errors, key=lambda error: len(error.path))

    return Form(
        _union_schema(members),
        read,
        max(member.rank for member in members),
        is_hashable=all(member.is_hashable for member in members),
        is_key=all(member.is_key for member in members),
    )


def _union_schema(members: Sequence[Form]) -> dict[str, Any]:
    schemas = [member.schema for member in members if member is not SCALARS[type(None)]]
    if len(schemas) == 1:
        schema = dict(schemas[0])
    elif all(one.keys() == {"type"} and isinstance(one["type"], str) for one in schemas):
        types = sorted({one["type"] for one in schemas})
        schema = {"type": types[0] if len(types) == 1 else types}
    else:
        schema = {"anyOf": schemas}
    if len(schemas) < len(members):
        schema["nullable"] = True
    return schema


def _check_apart(members: Sequence[Form], names: Sequence[str]) -> None:
    named = [(one.schema, name) for one, name in zip(members, names, strict=True) if one.is_named]
    for index, (schema, name) in enumerate(named):
        for other, first in named[:index]:
            if not _is_apart(other, schema):
                raise FormError(
                    f"{first} and {name} can be the same in JSON; a required field with a Literal of its own "
                    "in each would tell them apart"
                )


def _is_apart(one: Any, other: Any) -> bool:
    """Whether no JSON value fits both schemas, as far as types, choices, keys and items tell."""
    common = find_kinds(one, {}) & find_kinds(other, {})
    if not common:
        return True
    if (chosen := _choices(one)) is not None and (choices := _choices(other)) is not None:
        return not {repr(value) for value in chosen} & {repr(value) for value in choices}
    if common == {"array"} and "prefixItems" in one and "prefixItems" in other:
        parts = one["prefixItems"], other["prefixItems"]
        return len(parts[0]) != len(parts[1]) or any(map(_is_apart, *parts))
    return common == {"object"} and _are_objects_apart(one, other)


def _are_objects_apart(one: Any, other: Any) -> bool:
    fields = one.get("properties", {}), other.get("properties", {})
    required = set(one.get("required", ())), set(other.get("required", ()))
    for schema, own, needed in ((one, fields[0], required[1]), (other, fields[1], required[0])):
        if schema.get("additionalProperties") is False and needed - own.keys():
            return True
    shared = required[0] & required[1]
    return any(_is_apart(fields[0].get(name, {}), fields[1].get(name, {})) for name in shared)


def _choices(schema: Any) -> Any:
    return [schema["const"]] if "const" in schema else schema.get("enum")
