"""What one token shows of a model: the sizes of its cache, and whether its layers can use ours."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache as TransformersCache

from fnroll.models import attention
from fnroll.models.support import UnsupportedModelError, set_attention

_MOST_SAID = 300
"""Characters of somebody else's message."""


class _ShapeRecorder(TransformersCache):
    """Stands in for the cache and keeps what each layer hands over."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(layers=[])
        self.seen: dict[int, tuple[Tensor, Tensor]] = {}
        self.start = torch.zeros(1, dtype=torch.int64, device=device)

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        self.seen[layer_idx] = (key_states, value_states)
        return key_states, value_states

    def get_query_offset(self, layer_idx: int = 0) -> Tensor:
        return self.start

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


@dataclass(frozen=True)
class DryRun:
    """What a forward of one token showed."""

    cache_shapes: tuple[tuple[int, int, int], ...]
    """Of each layer: heads, head size of keys, head size of values."""
    vocab_size: int
    dtype: torch.dtype
    """Of keys and values."""


def cache_argument(module: nn.Module) -> str:
    """Return what a model's forward calls its cache."""
    # transformers renamed `past_key_values` to `cache` in 5.2x.
    return "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"


def dry_run(twin: nn.Module, device: torch.device) -> DryRun:
    """Feed one token to a twin, whose attention is then fnroll's.

    Raises:
      UnsupportedModelError: if a layer of the cache is not written, attention does not go through
        transformers' `AttentionInterface`, or the forward fails; the message says which.
    """
    name, recorder = type(twin).__name__, _ShapeRecorder(device)
    set_attention(twin, attention.DRY_RUN)
    try:
        logits = _feed(twin, recorder, device)
    finally:
        set_attention(twin, attention.IMPLEMENTATION)
    layers = sorted(recorder.seen)
    if layers != list(range(len(layers))) or not layers:
        raise UnsupportedModelError(f"{name}: only layers {layers} write keys and values; every layer must")
    if sum(map(attention.take_count, twin.modules())) < len(layers):
        raise UnsupportedModelError(
            f"{name}: its layers attend by code of their own and not through transformers' "
            f"AttentionInterface, so their masks would be wrong over a cache of unequal rows"
        )
    keys = [recorder.seen[layer] for layer in layers]
    return DryRun(
        cache_shapes=tuple((k.shape[1], k.shape[-1], v.shape[-1]) for k, v in keys),
        vocab_size=logits.shape[-1],
        dtype=keys[0][0].dtype,
    )


def _feed(twin: nn.Module, recorder: _ShapeRecorder, device: torch.device) -> Tensor:
    one = torch.zeros((1, 1), dtype=torch.int64, device=device)
    inputs = {"input_ids": one, "position_ids": one, "use_cache": True, cache_argument(twin): recorder}
    try:
        with torch.no_grad():
            logits: Tensor = twin(**inputs).logits
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever the code of a model throws over a cache it does not know
        said = " ".join(str(error).split())[:_MOST_SAID]
        if not isinstance(error, UnsupportedModelError):
            said = f"its forward fails over a cache of fnroll's, by {type(error).__name__}: {said}"
        raise UnsupportedModelError(f"{type(twin).__name__}: {said}") from error
    return logits
