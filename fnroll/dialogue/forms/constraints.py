"""What `Annotated` says about the values of a type."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from fnroll.dialogue.forms.form import Form, FormError

_NUMBERS = {
    "Gt": ("gt", "exclusiveMinimum"),
    "Ge": ("ge", "minimum"),
    "Lt": ("lt", "exclusiveMaximum"),
    "Le": ("le", "maximum"),
    "MultipleOf": ("multiple_of", "multipleOf"),
}
_SIZES = {
    "MinLen": ("min_length", {"string": "minLength", "array": "minItems", "object": "minProperties"}),
    "MaxLen": ("max_length", {"string": "maxLength", "array": "maxItems", "object": "maxProperties"}),
}
_LIBRARIES = ("annotated_types", "pydantic")


def constrain(form: Form, metadata: Iterable[Any]) -> Form:
    """Write the constraints of `annotated_types`, which pydantic's `Field` uses too, into a schema.

    Args:
      form: of the type that is annotated.
      metadata: what else stands in `Annotated`; what is of no such library means something to others, and is
        passed over.

    Returns:
      The form, with a schema that says the constraints.

    Raises:
      FormError: a constraint has no keyword in a JSON schema of this type.
    """
    words: dict[str, Any] = {}
    for item in metadata:
        words |= _words(item, form.schema.get("type"))
    return dataclasses.replace(form, schema={**form.schema, **words}) if words else form


def _words(item: Any, kind: Any) -> dict[str, Any]:
    name = type(item).__name__
    if type(item).__module__.partition(".")[0] not in _LIBRARIES:
        return {}
    if name == "FieldInfo":
        return {key: value for part in item.metadata for key, value in _words(part, kind).items()}
    if name == "Interval" or name == "Len":
        return {key: value for part in item for key, value in _words(part, kind).items()}
    if name in _NUMBERS and kind in ("integer", "number"):
        field, word = _NUMBERS[name]
        return {word: getattr(item, field)}
    if name in _SIZES and kind in _SIZES[name][1]:
        field, words = _SIZES[name]
        return {words[kind]: getattr(item, field)}
    raise FormError(f"the constraint {item!r} has no keyword in the JSON schema of this type")
