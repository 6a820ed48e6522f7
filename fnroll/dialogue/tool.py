"""Tools that a model may call: what they are named, what they take, what is wrong with a call."""

from __future__ import annotations

import copy
import functools
import inspect
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fnroll.checks import check_bool
from fnroll.dialogue.arguments import Arguments, SchemaArguments
from fnroll.dialogue.depth import TOO_DEEP, is_deep
from fnroll.dialogue.function import function_schema, name_function
from fnroll.dialogue.message import ToolCall
from fnroll.dialogue.output import clean_text
from fnroll.dialogue.schema import describe_invalid, make_validator, normal_schema, shorten
from fnroll.dialogue.signature import Signature, check_fit, check_name, is_async, read_signature

_MAX_FINDINGS = 8


class ToolError(Exception):
    """Raised by a tool to answer the model with exactly this message, as an error."""


@dataclass(frozen=True, eq=False)
class Tool:
    """A callable together with the JSON schema that the model reads.

    Make one by `Tool.from_function`, `Tool.from_object` or `Tool.from_schema`.
    """

    name: str
    """What the model calls it."""
    function: Callable[..., Any]
    """Takes the arguments by keyword; plain or async."""
    is_async: bool
    """Whether calling `function` gives an awaitable, known from its definition."""
    is_serial: bool
    """Whether its calls of one turn run one after another, in the order of the turn."""
    context: str | None
    """The parameter of `function` that takes the `ToolContext`, if there is one."""
    _schema: dict[str, Any]
    _validator: Any
    _signature: Signature
    _arguments: Arguments

    @classmethod
    def from_function(
        cls,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        is_serial: bool = False,
    ) -> Tool:
        """Make a tool from a function, plain or async, with type hints and a Google-style docstring.

        Args:
          function: takes its arguments by keyword; a method or a partial too, of which what is bound is not
            shown.
          name: replaces the function's own name.
          description: replaces the docstring's description.
          is_serial: whether its calls of one turn run one after another.

        Returns:
          The tool.

        Raises:
          ValueError: a hint, a docstring or an argument's description is missing, a type has no JSON form, or
            the name is bad.
        """
        if not callable(function):
            raise ValueError(f"Tool.from_function needs a function, but got {function!r}.")
        own, docs = name_function(function)
        return cls._described(function, own if name is None else name, description, docs, is_serial)

    @classmethod
    def from_object(
        cls,
        instance: Any,
        *,
        name: str | None = None,
        description: str | None = None,
        is_serial: bool = False,
    ) -> Tool:
        """Make a tool from an instance of a class with `__call__`, plain or async.

        Args:
          instance: its `__call__` has type hints; the docstring is that of `__call__`, or else the class's.
          name: the tool's name; by default the instance's `name`, or else its class's in snake_case.
          description: replaces the docstring's description.
          is_serial: whether its calls of one turn run one after another.

        Returns:
          The tool.

        Raises:
          ValueError: as in `from_function`.
        """
        if isinstance(instance, type) or not callable(instance):
            raise ValueError(f"Tool.from_object needs an instance with __call__, but got {instance!r}.")
        own, docs = name_function(instance)
        return cls._described(instance, own if name is None else name, description, docs, is_serial)

    @classmethod
    def _described(
        cls,
        function: Callable[..., Any],
        name: str,
        description: str | None,
        docs: tuple[str | None, ...],
        is_serial: bool,
    ) -> Tool:
        where = f"Tool {name!r}"
        signature = read_signature(function, where)
        schema, arguments = function_schema(function, signature, where, name, description, docs)
        return cls._checked(schema, function, signature, arguments, is_serial)

    @classmethod
    def from_schema(
        cls, schema: Mapping[str, Any], function: Callable[..., Any], *, is_serial: bool = False
    ) -> Tool:
        """Make a tool from a JSON schema and what is to be called.

        Args:
          schema: the OpenAI form, or its inner dict with `name`, `description` and `parameters`.
          function: takes the properties of `parameters` by keyword; plain or async.
          is_serial: whether its calls of one turn run one after another.

        Returns:
          The tool.

        Raises:
          ValueError: the schema is invalid, or the callable does not take what the schema offers.
        """
        inner = schema.get("function", schema) if isinstance(schema, Mapping) else {}
        name = inner.get("name") if isinstance(inner, Mapping) else None
        where = f"Tool {name!r}"
        if not callable(function):
            raise ValueError(f"{where}: needs a callable, but got {function!r}.")
        normal = normal_schema(schema, where)
        check_name(normal["function"]["name"])
        arguments = SchemaArguments(normal["function"]["parameters"])
        return cls._checked(normal, function, read_signature(function, where), arguments, is_serial)

    @classmethod
    def _checked(
        cls,
        schema: dict[str, Any],
        function: Callable[..., Any],
        signature: Signature,
        arguments: Arguments,
        is_serial: bool,
    ) -> Tool:
        name = schema["function"]["name"]
        where = f"Tool {name!r}"
        check_name(name)
        check_bool(where, "is_serial", is_serial)
        parameters = schema["function"]["parameters"]
        validator = make_validator(parameters, where)
        check_fit(signature, parameters, where)
        return cls(
            name=name,
            function=function,
            is_async=is_async(function),
            is_serial=is_serial,
            context=signature.context,
            _schema=schema,
            _validator=validator,
            _signature=signature,
            _arguments=arguments,
        )

    @property
    def schema(self) -> dict[str, Any]:
        """The OpenAI-style dict for a chat template, a new copy each time."""
        return copy.deepcopy(self._schema)

    def read(self, arguments: object) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Check the arguments of a call, and make of each what the tool takes.

        Args:
          arguments: what the model wrote; it is not changed.

        Returns:
          The arguments by name, an own copy; and what is wrong, one clause per failing argument. The call may
          only be made if nothing is wrong.
        """
        if not isinstance(arguments, dict):
            return {}, (f"the arguments must be a JSON object, but are {shorten(arguments)}",)
        if is_deep(arguments):
            return {}, (f"the arguments are {TOO_DEEP}",)
        offered = tuple(self._schema["function"]["parameters"]["properties"])
        unexpected = [key for key in arguments if not self._may_have(key, offered)]
        known = self._arguments.keep({key: arguments[key] for key in arguments if key not in unexpected})
        values, found = self._read_known(known)
        found += [f"unexpected argument {shorten(key)}" for key in unexpected]
        if unexpected:
            found[-1] += f" (it takes: {', '.join(offered) or 'no arguments'})"
        return values, tuple(found)

    def _may_have(self, key: str, offered: tuple[str, ...]) -> bool:
        signature = self._signature
        return key in offered or (signature.rest is not None and key not in signature.hidden)

    def _read_known(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        try:
            errors = sorted(
                self._validator.iter_errors(arguments), key=lambda error: str(list(error.absolute_path))
            )
            if errors:
                return {}, [describe_invalid(error) for error in errors]
            values, found = self._arguments.read(copy.deepcopy(arguments))
            return values, list(found)
        except RecursionError:
            return {}, [f"the arguments are {TOO_DEEP}"]
        except Exception as error:
            return {}, [f"the arguments cannot be checked ({type(error).__name__})"]


@dataclass(frozen=True)
class BoundCall:
    """A call that may be made."""

    tool: Tool
    """What to call."""
    arguments: dict[str, Any]
    """By name and of the types that the tool declares; an own copy, which it may change."""


@dataclass(frozen=True)
class BadCall:
    """A call that must not be made."""

    text: str
    """What the model reads."""
    status: Literal["unknown_tool", "bad_arguments"]
    """Why."""


class ToolSet:
    """An immutable set of tools with distinct names."""

    def __init__(self, tools: Iterable[Any] = ()) -> None:
        """Collect tools.

        Args:
          tools: `Tool` objects, functions, or instances with `__call__`.

        Raises:
          ValueError: two names are equal, or differ only by case or Unicode form.
        """
        self._tools: dict[str, Tool] = {}
        seen: dict[str, str] = {}
        for tool in map(to_tool, tools):
            key = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", tool.name).casefold())
            if key in seen:
                raise ValueError(
                    f"ToolSet: the tools {seen[key]!r} and {tool.name!r} must have names that differ by more "
                    "than case and Unicode form."
                )
            seen[key] = tool.name
            self._tools[tool.name] = tool

    def __len__(self) -> int:
        return len(self._tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the order given."""
        return tuple(self._tools)

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """OpenAI-style dicts for the chat template, new copies in the order given."""
        return [tool.schema for tool in self]

    def bind(self, call: ToolCall) -> BoundCall | BadCall:
        """Check a call, and make its arguments what the tool takes.

        Args:
          call: what the model asked for; it is not changed.

        Returns:
          The call to make, or the text that tells the model what is wrong with it.
        """
        tool = self._tools.get(call.name) if isinstance(call.name, str) else None
        if tool is None:
            known = f"The tools are: {', '.join(self.names)}." if self._tools else "There are no tools."
            return BadCall(
                clean_text(f"Error: there is no tool {shorten(call.name)}. {known}"), "unknown_tool"
            )
        arguments, found = tool.read(call.arguments)
        if not found:
            return BoundCall(tool, arguments)
        more = f"; and {len(found) - _MAX_FINDINGS} more" if len(found) > _MAX_FINDINGS else ""
        text = f"Error: wrong arguments for tool {tool.name!r}: {'; '.join(found[:_MAX_FINDINGS])}{more}."
        return BadCall(clean_text(text), "bad_arguments")


def to_tool(value: Any) -> Tool:
    """Make a tool of what a user may put in a list of tools.

    Args:
      value: a `Tool`, a function, a method, a partial, or an instance with `__call__`.

    Returns:
      The tool.

    Raises:
      ValueError: it is none of these.
    """
    if isinstance(value, Tool):
        return value
    if inspect.isroutine(value) or isinstance(value, functools.partial):
        return Tool.from_function(value)
    return Tool.from_object(value)
