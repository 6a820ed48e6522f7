"""The routers of a model, found without knowing its library: by what the model says it can record."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import nn

from fnroll.routing.errors import NoRoutersError, RouterUnsupportedError
from fnroll.routing.schema import RouteSchema

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)(?:\.|$)")
# Heads that predict several tokens at once have routers too, under numbers of decoder layers.
_NO_DECODER = re.compile(r"(?:^|[._])(?:mtp|nextn|visual|vision)(?:[._]|$)", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Router:
    """A module that returns `(logits [T, E], weights [T, K], indices [T, K])` for T tokens, row by row."""

    layer_id: int
    """Number of the decoder layer."""
    name: str
    """Of the module in the model."""
    module: nn.Module
    num_experts: int
    top_k: int

    @property
    def label(self) -> str:
        """Class and name, for messages."""
        return f"{type(self.module).__name__} {self.name}"


def discover_routers(model: nn.Module, *, kind: type[nn.Module] | None = None) -> tuple[Router, ...]:
    """Return the routers of a model's decoder layers, by ascending layer.

    Args:
      model: of Hugging Face, whose classes name their router in `_can_record_outputs`; or any other.
      kind: the class of the routers; None takes what the model says.

    Raises:
      NoRoutersError: if there is none.
      RouterUnsupportedError: if a router is in no numbered layer, two are in one, or their sizes differ.
    """
    kinds = (kind,) if kind is not None else tuple(_recorded_kinds(model))
    found = [
        _read(name, module)
        for name, module in model.named_modules()
        if kinds and isinstance(module, kinds) and not _NO_DECODER.search(name)
    ]
    if not found:
        raise NoRoutersError(
            f"{type(model).__name__} has no routers; routes are of mixture-of-experts models; "
            f"replay with none"
        )
    found.sort(key=lambda router: router.layer_id)
    for a, b in pairwise(found):
        if a.layer_id == b.layer_id:
            raise RouterUnsupportedError(f"{a.label} and {b.label} are both in layer {a.layer_id}")
        if (a.num_experts, a.top_k) != (b.num_experts, b.top_k):
            raise RouterUnsupportedError(
                f"{a.label} chooses {a.top_k} of {a.num_experts} experts and {b.label} {b.top_k} of "
                f"{b.num_experts}; they must all choose alike"
            )
    return tuple(found)


def to_schema(routers: Sequence[Router], model_id: str = "") -> RouteSchema:
    """Return the schema of the routes that routers make."""
    return RouteSchema(
        num_experts=routers[0].num_experts,
        top_k=routers[0].top_k,
        layer_ids=tuple(router.layer_id for router in routers),
        model_id=model_id,
    )


def _recorded_kinds(model: nn.Module) -> Iterator[type[nn.Module]]:
    for module in model.modules():
        recorded: Any = getattr(module, "_can_record_outputs", None)
        recorded = recorded.get("router_logits") if isinstance(recorded, dict) else None
        for entry in recorded if isinstance(recorded, list | tuple) else [recorded]:
            target = getattr(entry, "target_class", entry)
            if isinstance(target, type):
                yield target


def _read(name: str, module: nn.Module) -> Router:
    layer = _LAYER.findall(name)
    sizes = {key: getattr(module, key, None) for key in ("num_experts", "top_k")}
    if not layer or not all(type(size) is int for size in sizes.values()):
        raise RouterUnsupportedError(
            f"{type(module).__name__} {name} has {sizes}; a router must be in `layers.<number>` and have "
            f"ints num_experts and top_k"
        )
    return Router(int(layer[-1]), name, module, module.num_experts, module.top_k)  # type: ignore[arg-type]
