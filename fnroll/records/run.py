"""The run that a record was begun in, and whether another one may go on with it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from fnroll.checks import check_choice

# What tokens were drawn from cannot be made known afterwards, nor fit into another width.
_FIXED = "support_size"
# Version 0.1 wrote into the model's description what a rank caches of a token.
_MACHINE = re.compile(r" of \d+ cached numbers a token")


def check_run(label: str, begun: Mapping[str, Any], run: Mapping[str, Any], changed: Collection[str]) -> None:
    """Require that a run is the one that something was begun in, but for the names in `changed`.

    Raises:
      ValueError: naming the first field that differs, with both values.
    """
    for name in changed:
        check_choice("RolloutRequest", "changed", name, [other for other in run if other != _FIXED])
    begun = {**begun, **({"model": _MACHINE.sub("", begun["model"])} if "model" in begun else {})}
    for name, value in run.items():
        if name == "weights" and _is_newer(begun.get(name), value):
            continue
        if name in begun and begun[name] != value and name not in changed:
            remedy = "" if name == _FIXED else f", or say so: RolloutRequest(..., changed=({name!r},))"
            raise ValueError(
                f"{label} was begun with {name} {begun[name]!r}, and this call has {value!r}; give the same"
                f"{remedy}"
            )


def _is_newer(begun: Any, present: Any) -> bool:
    """Whether weights have another version, so that who synced them knows that they are others."""
    return str(begun).split(",")[0] != str(present).split(",")[0]
