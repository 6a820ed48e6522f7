"""JSON schemas of tools: checked, and used to check arguments."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jsonschema
import referencing
import referencing.jsonschema
from jsonschema.validators import validator_for

_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SCHEMA_LISTS = ("prefixItems", "allOf", "anyOf", "oneOf")
_SCHEMAS = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_TYPE_NAMES = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}
_MAX_SHOWN = 100


def normal_schema(schema: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Bring a schema into the OpenAI form, and say what is wrong with it.

    Args:
      schema: `{"type": "function", "function": {...}}`, or only the inner dict with `name`, `description`
        and `parameters`.
      where: how errors name the tool.

    Returns:
      An independent copy in the full form; `parameters` defaults to an object without properties.

    Raises:
      ValueError: a part is missing or of the wrong type.
    """
    if not isinstance(schema, Mapping):
        raise ValueError(f"{where}: the schema is a {type(schema).__name__}; it must be a dict")
    inner = schema.get("function", schema)
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        raise ValueError(f"{where}: the schema must hold a string 'name', a 'description' and 'parameters'.")
    full = copy.deepcopy(dict(inner))
    full.setdefault("description", "")
    full.setdefault("parameters", {"type": "object", "properties": {}})
    if not isinstance(full["description"], str):
        raise ValueError(f"{where}: 'description' is {full['description']!r}; it must be a string")
    parameters = full["parameters"]
    if not isinstance(parameters, dict) or parameters.get("type", "object") != "object":
        raise ValueError(
            f"{where}: 'parameters' is {parameters!r}; it must be a JSON schema of type 'object'"
        )
    parameters.setdefault("type", "object")
    parameters.setdefault("properties", {})
    return {"type": "function", "function": full}


def make_validator(parameters: dict[str, Any], where: str) -> Any:
    """Make the checker of a tool's arguments.

    `nullable`, which transformers writes for optional hints and JSON Schema does not know, is understood.

    Args:
      parameters: a JSON schema of type object.
      where: how errors name the tool.

    Returns:
      A validator that never loads a schema from elsewhere.

    Raises:
      ValueError: the schema is no valid JSON schema, or refers to something outside itself.
    """
    kind: Any = validator_for(parameters, default=jsonschema.Draft202012Validator)
    try:
        json.dumps(parameters)
        kind.check_schema(parameters)
    except jsonschema.SchemaError as error:
        raise ValueError(f"{where}: 'parameters' is no valid JSON schema: {error.message}.") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{where}: 'parameters' cannot be written as JSON: {error}.") from error
    _check_references(parameters, where)
    registry: Any = referencing.Registry()
    return kind(_with_null(parameters), registry=registry)


def _check_references(parameters: dict[str, Any], where: str) -> None:
    specification = referencing.jsonschema.specification_with(
        parameters.get("$schema", "https://json-schema.org/draft/2020-12/schema")
    )
    resource = specification.create_resource(parameters)
    registry: Any = referencing.Registry()
    resolver = registry.resolver_with_root(resource)
    for reference in _references(parameters):
        try:
            resolver.lookup(reference)
        except Exception as error:
            raise ValueError(
                f"{where}: '$ref' {reference!r} is not found; only places inside 'parameters' are allowed."
            ) from error


def _references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [reference for item in node for reference in _references(item)]
    if not isinstance(node, dict):
        return []
    here = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
    return here + [reference for item in node.values() for reference in _references(item)]


def _map_parts(schema: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """The same schema with each schema that stands in it changed."""
    out = dict(schema)
    for key in _SCHEMA_MAPS:
        if isinstance(out.get(key), dict):
            out[key] = {name: change(item) for name, item in out[key].items()}
    for key in (*_SCHEMA_LISTS, *_SCHEMAS):
        if isinstance(out.get(key), list):
            out[key] = [change(item) for item in out[key]]
        elif isinstance(out.get(key), dict):
            out[key] = change(out[key])
    return out


def _with_null(schema: Any) -> Any:
    """The same schema with `nullable: true` said in JSON Schema's own words."""
    if not isinstance(schema, dict):
        return schema
    out = _map_parts(schema, _with_null)
    if out.pop("nullable", False) is not True:
        return out
    if set(out) <= {"type", "description", "enum", "default"} and "type" in out:
        types = out["type"] if isinstance(out["type"], list) else [out["type"]]
        out["type"] = [*types, "null"]
        if "enum" in out:
            out["enum"] = [*out["enum"], None]
        return out
    return {"anyOf": [out, {"type": "null"}]}


def inline_references(schema: dict[str, Any]) -> dict[str, Any]:
    """Put the `$defs` of a schema where they are referred to, so that it can be a part of another.

    Titles, which repeat names, and OpenAPI's `discriminator`, which refers too, are left out.

    Args:
      schema: a JSON schema.

    Returns:
      An independent one without `$defs`.

    Raises:
      ValueError: a definition refers to itself.
    """
    definitions = schema.get("$defs", {})

    def inline(node: Any, outer: tuple[str, ...]) -> Any:
        if not isinstance(node, dict):
            return node
        node = {key: value for key, value in node.items() if key not in ("$defs", "title", "discriminator")}
        if (reference := node.pop("$ref", None)) is not None:
            name = reference.removeprefix("#/$defs/")
            if name in outer:
                raise ValueError(f"{name} holds itself, which has no finite schema")
            node = {**inline(definitions[name], (*outer, name)), **node}
        return _map_parts(node, lambda part: inline(part, outer))

    return copy.deepcopy(inline(schema, ()))


def describe_invalid(error: Any) -> str:
    """Write one finding of a validator as a clause that names the argument.

    Args:
      error: a `jsonschema.ValidationError`.

    Returns:
      For example `argument 'a' must be of type integer, but is the string '1'`.
    """
    path = name_place(error.absolute_path)
    if error.validator == "required":
        missing = [name for name in error.validator_value if name not in error.instance]
        # One finding per missing name, each with the whole list: the message says which.
        name = next((name for name in missing if error.message.startswith(repr(name))), missing[0])
        return f"{path} lacks {name!r}" if path else f"missing argument {name!r}"
    subject = path or "the arguments"
    if error.validator == "type":
        wanted = error.validator_value
        types = wanted if isinstance(wanted, str) else " or ".join(wanted)
        kind = _TYPE_NAMES.get(type(error.instance), type(error.instance).__name__)
        return f"{subject} must be of type {types}, but is the {kind} {shorten(error.instance)}"
    if error.validator in ("enum", "const"):
        allowed = error.validator_value if error.validator == "enum" else [error.validator_value]
        choices = ", ".join(shorten(item) for item in allowed)
        return f"{subject} must be one of {choices}, but is {shorten(error.instance)}"
    message = error.message if len(error.message) <= 2 * _MAX_SHOWN else f"fails {error.validator!r}"
    return f"{subject}: {message}"


def name_place(path: Iterable[str | int]) -> str:
    """Write where in the arguments a value stands.

    Args:
      path: keys and indices, from the outermost.

    Returns:
      For example `argument 'box.sizes[1]'`; empty for the arguments themselves.
    """
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return f"argument {text!r}" if text else ""


def shorten(value: object) -> str:
    """Write a value as short JSON for an error text.

    Args:
      value: any argument.

    Returns:
      At most about 100 characters.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."
