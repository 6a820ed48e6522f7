"""The JSON types that a schema admits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ALL = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def find_kinds(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """Find the JSON types that a schema may admit, as far as types, choices and references tell.

    Args:
      schema: any JSON schema.
      root: where references in it start.

    Returns:
      Their names; with `number` always `integer`, which every whole number is too.
    """
    if not isinstance(schema, Mapping):
        return _ALL
    kinds = _ALL
    declared = schema.get("type")
    if declared is not None:
        named = {declared} if isinstance(declared, str) else set(declared)
        kinds = frozenset(named | ({"integer"} if "number" in named else set()))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is not None:
        kinds &= {_NAMES.get(type(value), "null") for value in values}
    for part in all_of(schema, root):
        kinds &= find_kinds(part, root)
    for options in any_of(schema):
        kinds &= frozenset[str]().union(*(find_kinds(option, root) for option in options))
    return kinds | {"null"} if schema.get("nullable") is True else kinds


def all_of(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[Any]:
    """List the schemas that a value must fit besides this one, references followed."""
    reference = schema.get("$ref")
    return [*schema.get("allOf", ()), *([_resolve(reference, root)] if isinstance(reference, str) else [])]


def any_of(schema: Mapping[str, Any]) -> list[list[Any]]:
    """List the choices of schemas of which a value must fit one each."""
    return [schema[word] for word in ("anyOf", "oneOf") if schema.get(word)]


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    if reference != "#" and not reference.startswith("#/"):
        return {}
    found: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        found = found[int(step)] if isinstance(found, list) else found.get(step, {})
    return found
