"""What a function tells of itself: its name, its docstrings, and the types of its arguments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, get_type_hints

from transformers.utils.chat_template_utils import get_json_schema

from fnroll.dialogue.arguments import TypedArguments
from fnroll.dialogue.forms.find import ALLOWED, find_form
from fnroll.dialogue.forms.form import Form, FormError
from fnroll.dialogue.forms.scalars import SCALARS
from fnroll.dialogue.signature import Signature, inner_function

Docs = tuple[str | None, ...]


def name_function(function: Any) -> tuple[str, Docs]:
    """Find what a callable is called and where it is described.

    Args:
      function: a function, a method, an instance with `__call__`, or a partial of one.

    Returns:
      The name, an instance's own `name` or its class's in snake_case; and its docstrings, the best first.
    """
    inner = inner_function(function)
    if inspect.isroutine(inner) or isinstance(inner, type):
        return inner.__name__, (inner.__doc__,)
    kind = type(inner)
    own = getattr(inner, "name", None)
    name = own if isinstance(own, str) else re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).lower()
    return name, (getattr(kind.__call__, "__doc__", None), kind.__doc__)


def function_schema(
    function: Callable[..., Any],
    signature: Signature,
    where: str,
    name: str,
    description: str | None,
    docs: Docs,
) -> tuple[dict[str, Any], TypedArguments]:
    """Make an OpenAI-style schema from type hints and a Google-style docstring.

    Args:
      function: what will be called.
      signature: of it.
      where: how errors name the tool.
      name: the tool's name.
      description: replaces the docstring's description when given.
      docs: docstrings; the first that is there describes the arguments.

    Returns:
      A dict with `type` and `function`, and how the arguments of a call are read.

    Raises:
      ValueError: a hint or a docstring is missing or has no JSON form.
    """
    doc = next((doc for doc in docs if doc and doc.strip()), None)
    if doc is None:
        raise ValueError(f"{where} has no docstring; write one with an Args section, or give a schema.")
    try:
        arguments = _find_arguments(function, signature)
        schema: dict[str, Any] = get_json_schema(_documented(name, doc, signature))
    except Exception as error:
        raise ValueError(f"{where} gives no JSON schema: {error}") from error
    properties = schema["function"]["parameters"]["properties"]
    for key, form in arguments.forms.items():
        properties[key] = {**form.schema, **properties[key]}
    if description is not None:
        schema["function"]["description"] = description
    return schema, arguments


def _documented(name: str, doc: str, signature: Signature) -> Callable[..., Any]:
    """A stand-in with a name, a docstring and parameters of any type, from which descriptions are read."""

    def stand_in() -> None: ...

    stand_in.__name__ = name
    stand_in.__doc__ = inspect.cleandoc(doc)
    stand_in.__annotations__ = dict.fromkeys(signature.visible, Any)
    parameters = [parameter.replace(annotation=Any) for parameter in signature.visible.values()]
    stand_in.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return stand_in


def _find_arguments(function: Callable[..., Any], signature: Signature) -> TypedArguments:
    inner = inner_function(function)
    hints = get_type_hints(inner if inspect.isroutine(inner) else type(inner).__call__, include_extras=True)
    forms = {name: _find(f"argument {name!r}", hints, name) for name in signature.visible}
    rest = SCALARS[Any]
    if signature.rest is not None and signature.rest in hints:
        rest = _find(f"'**{signature.rest}'", hints, signature.rest)
    blank = {
        name
        for name, parameter in signature.visible.items()
        if parameter.default is None and not forms[name].takes(None)
    }
    return TypedArguments(forms, rest, frozenset(blank))


def _find(subject: str, hints: dict[str, Any], name: str) -> Form:
    if name not in hints:
        raise FormError(f"{subject} has no type hint")
    try:
        return find_form(hints[name])
    except FormError as error:
        raise FormError(f"{subject}: {error}; {ALLOWED}") from error
    except RecursionError as error:
        raise FormError(f"{subject}: the type is nested too deeply; {ALLOWED}") from error
