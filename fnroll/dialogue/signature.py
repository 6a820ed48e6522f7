"""Whether a callable and a JSON schema fit together."""

from __future__ import annotations

import functools
import inspect
import types
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from fnroll.dialogue.context import ToolContext

_KINDS = inspect.Parameter
_NAMED = (_KINDS.POSITIONAL_OR_KEYWORD, _KINDS.KEYWORD_ONLY)


@dataclass(frozen=True)
class Signature:
    """What a callable takes from a model, by keyword."""

    visible: Mapping[str, inspect.Parameter]
    """Parameters that a model may be shown, in order."""
    hidden: frozenset[str]
    """Names that are given otherwise: bound by a partial, or the context."""
    context: str | None
    """The parameter that takes the `ToolContext`, if there is one."""
    rest: str | None
    """The `**` parameter, which takes any other name, if there is one."""


def check_name(name: str) -> None:
    """Refuse names that a tool-call format could not carry.

    Args:
      name: a tool's name.

    Raises:
      ValueError: it is empty, or holds a space, a quote, a bracket or the like.
    """

    def is_allowed(char: str) -> bool:
        return char.isalnum() or char in "_-.:/" or unicodedata.category(char).startswith("M")

    if not name or not all(map(is_allowed, name)):
        raise ValueError(f"Tool name {name!r} must consist of letters, digits and _ - . : / only.")


def read_signature(function: Callable[..., Any], where: str) -> Signature:
    """Find out what a callable takes.

    Args:
      function: what will be called.
      where: how errors name the tool.

    Returns:
      Its signature.

    Raises:
      ValueError: it has none, or a parameter that cannot be filled by name.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: the callable has no signature; wrap it in a Python function.") from error
    for name, parameter in parameters.items():
        if parameter.kind is _KINDS.POSITIONAL_ONLY:
            raise ValueError(f"{where}: parameter {name!r} must not be positional-only.")
        if parameter.kind is _KINDS.VAR_POSITIONAL:
            raise ValueError(f"{where}: '*{name}' cannot be filled by name; use a list parameter.")
    contexts = _find_contexts(function, parameters)
    if len(contexts) > 1:
        raise ValueError(f"{where}: {' and '.join(map(repr, contexts))} are both ToolContext; one is enough.")
    bound = function.keywords if isinstance(function, functools.partial) else {}
    hidden = frozenset({*bound, *contexts})
    return Signature(
        visible={name: p for name, p in parameters.items() if p.kind in _NAMED and name not in hidden},
        hidden=hidden,
        context=contexts[0] if contexts else None,
        rest=next((name for name, p in parameters.items() if p.kind is _KINDS.VAR_KEYWORD), None),
    )


def _find_contexts(function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    inner = inner_function(function)
    try:
        hints = get_type_hints(inner if inspect.isroutine(inner) else type(inner).__call__)
    except Exception:
        # Of a callable that comes with a schema, nobody needs the other hints.
        hints = {name: parameter.annotation for name, parameter in parameters.items()}
    return [name for name, p in parameters.items() if p.kind in _NAMED and _is_context(hints.get(name))]


def _is_context(hint: Any) -> bool:
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    names = ("ToolContext", "fnroll.ToolContext")
    return any(member is ToolContext or (isinstance(member, str) and member in names) for member in members)


def check_fit(signature: Signature, parameters: dict[str, Any], where: str) -> None:
    """Make sure that a call which fits the schema also fits the callable.

    With this, a `TypeError` during a call can only come from the tool's own code.

    Args:
      signature: of the callable.
      parameters: the JSON schema of its arguments.
      where: how errors name the tool.

    Raises:
      ValueError: the schema offers what the callable does not take, or leaves out what it requires.
    """
    offered, required = parameters["properties"], parameters.get("required", [])
    taken = {*signature.visible, *(signature.hidden - {signature.context})}
    for name in (*offered, *required):
        if name == signature.context:
            raise ValueError(f"{where}: the schema offers {name!r}, which is the ToolContext.")
        if name not in taken and signature.rest is None:
            names = ", ".join(signature.visible) or "nothing"
            raise ValueError(f"{where}: the schema offers {name!r}, but the callable takes {names}.")
    for name, parameter in signature.visible.items():
        if parameter.default is _KINDS.empty and name not in required:
            raise ValueError(f"{where}: the callable requires {name!r}, but the schema does not.")


def inner_function(function: Any) -> Any:
    """Return what a partial is a partial of; anything else as it is."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def is_async(function: Callable[..., Any]) -> bool:
    """Tell by its definition whether calling it gives a coroutine.

    Args:
      function: a function, a partial, a decorated function or an instance with `__call__`.

    Returns:
      False also for a plain function that happens to return an awaitable.
    """
    inner = inspect.unwrap(function)
    while hasattr(inner, "func"):
        inner = inner.func
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None))  # noqa: B004
