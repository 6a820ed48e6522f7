"""Whole numbers that JSON writes as floats, found by a schema where no type hint says what is meant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fnroll.dialogue.forms.kinds import all_of, any_of, find_kinds


def whole_numbers(value: Any, schema: Any, root: Mapping[str, Any]) -> Any:
    """Write a float without a fraction as an int where the schema admits integers but no other number.

    Args:
      value: fits the schema.
      schema: of this value.
      root: where references in it start.

    Returns:
      The value; lists and dicts are new.
    """
    if isinstance(value, list):
        return [whole_numbers(item, _part(schema, index, root), root) for index, item in enumerate(value)]
    if isinstance(value, dict):
        return {key: whole_numbers(item, _part(schema, key, root), root) for key, item in value.items()}
    if isinstance(value, float) and value.is_integer():
        kinds = find_kinds(schema, root)
        return int(value) if "integer" in kinds and "number" not in kinds else value
    return value


def _part(schema: Any, step: str | int, root: Mapping[str, Any]) -> Any:
    """The schema of a part of a value, from all places that speak of it."""
    if not isinstance(schema, Mapping):
        return {}
    kind = "object" if isinstance(step, str) else "array"
    every = [_own_part(schema, step), *(_part(one, step, root) for one in all_of(schema, root))]
    for options in any_of(schema):
        every.append({"anyOf": [_part(one, step, root) for one in options if kind in find_kinds(one, root)]})
    return {"allOf": [part for part in every if part]}


def _own_part(schema: Mapping[str, Any], step: str | int) -> Any:
    if isinstance(step, str):
        named = schema.get("properties", {})
        return named[step] if step in named else schema.get("additionalProperties")
    first = schema.get("prefixItems", schema.get("items"))
    if isinstance(first, list):
        return (
            first[step]
            if step < len(first)
            else schema.get("items" if "prefixItems" in schema else "additionalItems")
        )
    return first
