"""What a model must be like to be driven over a cache of keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

_ATTENTION_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}


class UnsupportedModelError(ValueError):
    """A model that cannot be driven over a cache of keys and values."""


def text_config(module: nn.Module) -> Any:
    """Return the part of a model's configuration that says how it decodes text."""
    config: Any = module.config
    return config.get_text_config(decoder=True)


def set_attention(module: nn.Module, implementation: str) -> None:
    """Set which attention function a model's layers look up."""
    own: Any = module.config
    for config in {id(c): c for c in (own, text_config(module))}.values():
        config._attn_implementation = implementation


def check_layers(module: nn.Module) -> None:
    """Refuse a model whose layers keep something else than keys and values.

    Raises:
      UnsupportedModelError: naming the layers.
    """
    name, config = type(module).__name__, text_config(module)
    kinds: Sequence[str] = getattr(config, "layer_types", None) or ()
    other = [f"{index} ({kind})" for index, kind in enumerate(kinds) if kind not in _ATTENTION_LAYERS]
    if not other and getattr(module, "_is_stateful", False):
        other = [path for path, _ in module.named_modules() if path.split(".")[-1].isdigit()] or ["all"]
    if other:
        raise UnsupportedModelError(
            f"{name}: layers {', '.join(other)} keep a recurrent or other state besides keys and values, "
            f"which padding and reuse of rows would corrupt; only attention layers are supported "
            f"({', '.join(sorted(_ATTENTION_LAYERS))})"
        )


def max_positions(config: Any) -> int | None:
    """Return how many positions a model computes alike whatever else is in the batch; None for no bound.

    With rotary factors that change with the longest position in the batch (longrope), a record would depend
    on its neighbours beyond the length of the first factors.
    """
    bound: int | None = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    parts = [rope, *(part for part in rope.values() if isinstance(part, dict))]
    for part in parts:
        if part.get("rope_type") == "longrope":
            first = part.get("original_max_position_embeddings")
            first = first or getattr(config, "original_max_position_embeddings", None)
            bound = first if bound is None or first is None else min(bound, first)
    return bound
