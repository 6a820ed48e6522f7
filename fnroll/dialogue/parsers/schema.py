"""Values of formats that write text without types, converted as far as the tool's schema admits."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fnroll.dialogue.parsers.scan import Malformed, decode_json

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_BOOLEANS = {"true": True, "True": True, "false": False, "False": False}
_JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def parameter_schemas(tools: Sequence[Any]) -> dict[str, Mapping[str, Any]]:
    """The parameter schema of every tool by name, from tools in OpenAI's form or bare.

    Anything that is not a tool is skipped: a parser never raises, and the tools are checked elsewhere.
    """
    schemas = {}
    for tool in tools:
        tool = _mapping(tool)
        function = _mapping(tool.get("function", tool))
        name = function.get("name")
        if isinstance(name, str):
            schemas[name] = _mapping(function.get("parameters", function.get("input_schema")))
    return schemas


def convert(text: str, parameters: Mapping[str, Any], name: str) -> Any:
    """Convert a parameter's text to what its schema admits and the text spells exactly.

    Text that spells nothing the schema admits is kept as text; so is the text of a parameter without a type.
    Nothing is ever evaluated: arrays and objects are strict JSON.

    Args:
      text: as the model wrote it, white space included.
      parameters: schema of all of the tool's parameters.
      name: of the parameter.
    """
    schema = _mapping(_mapping(parameters.get("properties")).get(name))
    types = set(_types(schema, parameters, set()))
    plain = text.strip()
    if "null" in types and (plain == "null" or (plain == "None" and "string" not in types)):
        return None
    if "boolean" in types and plain in _BOOLEANS:
        return _BOOLEANS[plain]
    if types & {"integer", "number"} and (value := _number(plain, types)) is not None:
        return value
    if types & {"array", "object"} and plain[:1] in ("[", "{"):
        try:
            value = decode_json(plain)
        except Malformed:
            return text
        return value if _JSON_TYPES[type(value)] in types else text
    return text


def _number(text: str, types: set[str]) -> int | float | None:
    try:
        if _INTEGER.fullmatch(text):
            return int(text)
        value = float(text) if _NUMBER.fullmatch(text) else math.inf
    except ValueError:  # more digits than Python converts
        return None
    if not math.isfinite(value):
        return None
    if "number" in types:
        return value
    # "3.0" is an integer to JSON Schema, but where a string is admitted too it is no exact spelling of 3.
    return int(value) if value.is_integer() and "string" not in types else None


def _types(schema: Mapping[str, Any], root: Mapping[str, Any], seen: set[str]) -> Iterator[str]:
    """Name of all JSON types that a schema admits; none if it does not say.

    `seen` are the references followed so far: a recursive schema refers to itself.
    """
    declared = schema.get("type")
    yield from (kind for kind in [declared, *_list(declared)] if isinstance(kind, str))
    if schema.get("nullable") is True:
        yield "null"
    for value in [*_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]:
        yield _JSON_TYPES.get(type(value), "null")
    if isinstance(reference := schema.get("$ref"), str) and reference not in seen:
        seen.add(reference)
        yield from _types(_resolve(reference, root), root, seen)
    for key in ("anyOf", "oneOf", "allOf"):
        for option in _list(schema.get(key)):
            yield from _types(_mapping(option), root, seen)


def _resolve(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    found = root
    for step in reference.removeprefix("#").split("/")[1:]:
        found = _mapping(found.get(step.replace("~1", "/").replace("~0", "~")))
    return found


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
