"""Types with named fields: dataclass, TypedDict, NamedTuple, and pydantic's models."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, NotRequired, Required, get_args, get_origin, get_type_hints

from fnroll.dialogue.forms.containers import Find, read_parts
from fnroll.dialogue.forms.form import Form, FormError, Misfit, read_at, wrong
from fnroll.dialogue.output import describe_error
from fnroll.dialogue.schema import inline_references, shorten


def object_form(kind: type, find: Find) -> Form | None:
    """Make the form of a class with named fields.

    Args:
      kind: any class.
      find: gives the form of a field.

    Returns:
      The form, an object; an array for a NamedTuple, which is a tuple. None for any other class.

    Raises:
      FormError: a field has no hint or no form, or cannot be given when the object is made.
    """
    if dataclasses.is_dataclass(kind):
        return _dataclass_form(kind, find)
    if hasattr(kind, "model_validate_json") and hasattr(kind, "model_json_schema"):
        return _model_form(kind)
    if issubclass(kind, dict) and hasattr(kind, "__required_keys__"):
        return _typed_dict_form(kind, find)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _named_tuple_form(kind, find)
    return None


def _hints(kind: type) -> dict[str, Any]:
    try:
        return get_type_hints(kind, include_extras=True)
    except Exception as error:
        raise FormError(f"the hints of {kind.__name__} cannot be read: {error}") from error


def _fields_form(
    fields: Mapping[str, Form],
    required: list[str],
    make: Callable[..., Any],
    *,
    is_named: bool = True,
    is_hashable: bool = False,
) -> Form:
    properties = {name: form.schema for name, form in fields.items()}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    schema["additionalProperties"] = False

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise wrong("an object", value)
        for name in required:
            if name not in value:
                raise Misfit(f"lacks {name!r}")
        for name in value:
            if name not in fields:
                raise Misfit(f"has the unexpected key {shorten(name)}")
        return _make(make, {name: read_at(name, fields[name].read, part) for name, part in value.items()})

    return Form(schema, read, is_named=is_named, is_hashable=is_hashable)


def _make(make: Callable[..., Any], values: dict[str, Any]) -> Any:
    """Make an object; what its own code raises is a finding."""
    try:
        return make(**values)
    except Exception as error:
        raise Misfit(f"is refused: {describe_error(error)}") from error


def _dataclass_form(kind: Any, find: Find) -> Form:
    hints = _hints(kind)
    fields, required = {}, []
    for name, parameter in inspect.signature(kind).parameters.items():
        hint = hints.get(name)
        if (
            parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            or name not in hints
        ):
            raise FormError(f"the dataclass {kind.__name__} takes {name!r}, which has no hint of its own")
        fields[name] = find(hint.type if isinstance(hint, dataclasses.InitVar) else hint)
        if parameter.default is parameter.empty:
            required.append(name)
    is_hashable = kind.__hash__ is not None and all(field.is_hashable for field in fields.values())
    return _fields_form(fields, required, kind, is_hashable=is_hashable)


def _typed_dict_form(kind: Any, find: Find) -> Form:
    fields, required = {}, []
    for name, hint in _hints(kind).items():
        is_required = name in kind.__required_keys__
        while get_origin(hint) in (Required, NotRequired):
            # Python does not see these in `__required_keys__` where annotations are strings.
            is_required, (hint,) = get_origin(hint) is Required, get_args(hint)
        fields[name] = find(hint)
        if is_required:
            required.append(name)
    return _fields_form(fields, required, dict, is_named=False)


def _named_tuple_form(kind: Any, find: Find) -> Form:
    hints = _hints(kind)
    if missing := [name for name in kind._fields if name not in hints]:
        raise FormError(f"the NamedTuple {kind.__name__} has no hint for {missing[0]!r}")
    parts = tuple(find(hints[name]) for name in kind._fields)
    described = [{**part.schema, "description": name} for name, part in zip(kind._fields, parts, strict=True)]
    schema = {"type": "array", "prefixItems": described, "minItems": len(parts), "maxItems": len(parts)}

    def read(value: Any) -> Any:
        return _make(kind, dict(zip(kind._fields, read_parts(value, parts), strict=True)))

    return Form(schema, read, is_named=True, is_hashable=all(part.is_hashable for part in parts))


def _model_form(kind: Any) -> Form:
    try:
        schema = inline_references(kind.model_json_schema())
    except Exception as error:
        raise FormError(f"the model {kind.__name__} gives no JSON schema: {error}") from error

    def read(value: Any) -> Any:
        try:
            return kind.model_validate_json(json.dumps(value))
        except ValueError as error:
            raise _finding(error) from error

    return Form(schema, read, is_named=True, is_hashable=bool(kind.model_config.get("frozen")))


def _finding(error: Any) -> Misfit:
    """The first of the findings of a pydantic `ValidationError`, or another error of the model's own code."""
    findings = error.errors(include_url=False) if hasattr(error, "errors") else []
    if not findings:
        return Misfit(f"is refused: {describe_error(error)}")
    return Misfit(f"is refused: {findings[0]['msg']}", tuple(findings[0]["loc"]))
