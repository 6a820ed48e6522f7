"""How the arguments of a call, as JSON gives them, become what a tool takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fnroll.dialogue.forms.form import Form, Misfit
from fnroll.dialogue.forms.whole import whole_numbers
from fnroll.dialogue.schema import name_place


class Arguments(Protocol):
    """How the arguments of one tool are read."""

    def keep(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return those that are to be checked and read."""

    def read(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the arguments as the tool takes them, and what is wrong, one clause each."""


@dataclass(frozen=True)
class TypedArguments:
    """The arguments of a function with type hints."""

    forms: Mapping[str, Form]
    """Of each argument that the schema offers."""
    rest: Form
    """Of all that its `**` parameter takes."""
    blank: frozenset[str]
    """Names whose default is None though their type does not say so; null means that they are left out."""

    def keep(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Leave out those that say no more than a default of None does.

        Args:
          arguments: as the model wrote them.

        Returns:
          The others.
        """
        return {
            name: value for name, value in arguments.items() if value is not None or name not in self.blank
        }

    def read(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Make a value of its type from each argument.

        Args:
          arguments: an own copy, of which parts may go into the values.

        Returns:
          The values by name, and one clause for each that does not fit.
        """
        values, found = {}, []
        for name, value in arguments.items():
            try:
                values[name] = self.forms.get(name, self.rest).read(value)
            except Misfit as error:
                found.append(f"{name_place((name, *error.path))} {error.clause}")
        return values, tuple(found)


@dataclass(frozen=True)
class SchemaArguments:
    """The arguments of a tool that is described by a JSON schema alone."""

    schema: Mapping[str, Any]
    """Of all arguments."""

    def keep(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Keep all.

        Args:
          arguments: as the model wrote them.

        Returns:
          The same.
        """
        return dict(arguments)

    def read(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Make whole numbers int where the schema admits no others.

        Args:
          arguments: that fit the schema.

        Returns:
          The values by name, and no findings.
        """
        return whole_numbers(arguments, self.schema, self.schema), ()
