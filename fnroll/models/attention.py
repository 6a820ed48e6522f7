"""Attention over a cache that is a value: three public hooks of transformers, and the arithmetic."""

from __future__ import annotations

import functools
from typing import Any

import torch
from einops import rearrange, repeat
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache as TransformersCache
from transformers.cache_utils import CacheLayerMixin

from fnroll.core.model import Chunk, read_layer, write_layer
from fnroll.core.types import Cache
from fnroll.models.support import UnsupportedModelError

IMPLEMENTATION = "fnroll"
DRY_RUN = "fnroll_dry_run"
"""The same, but each layer counts how often it attends."""
_COUNT = "_fnroll_attended"


class ValueLayer(CacheLayerMixin):
    """One layer of a cache value, in the shape that a transformers model wants to update."""

    is_compileable = True
    is_sliding = False

    def __init__(self, keys: Tensor, values: Tensor, chunk: Chunk) -> None:
        super().__init__()
        self.keys, self.values, self.chunk = keys, values, chunk
        self.is_finite: Tensor | None = None
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: the buffers exist."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write `[A, H, Q, D]` keys and values; return what the chunk may attend to, `[A, H, W, D]`."""
        self.is_finite = _is_finite(key_states) & _is_finite(value_states)
        self.keys = write_layer(self.keys, key_states.transpose(1, 2), self.chunk)
        self.values = write_layer(self.values, value_states.transpose(1, 2), self.chunk)
        keys, values = read_layer(self.keys, self.chunk), read_layer(self.values, self.chunk)
        return keys.transpose(1, 2), values.transpose(1, 2)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return W and the position of the first slot."""
        return self.chunk.window, 0

    def get_query_offset(self) -> Tensor:
        """Return the position of each row's first column, `[A]`."""
        return self.chunk.start

    def get_seq_length(self) -> int:
        """Return 0: positions are given to the model, never counted from the cache."""
        return 0

    def get_max_length(self) -> int:
        """Return T."""
        return int(self.keys.shape[1]) - 1


def _is_finite(states: Tensor) -> Tensor:
    """Return whether all numbers of a token are finite, `[A, Q]`, of `[A, H, Q, D]`."""
    return states.isfinite().all(dim=-1).all(dim=1)


class ValueCache(TransformersCache):
    """A cache value behind the interface of transformers' `Cache`, for the time of one forward."""

    def __init__(self, cache: Cache, chunk: Chunk) -> None:
        super().__init__(
            layers=[ValueLayer(k, v, chunk) for k, v in zip(cache.keys, cache.values, strict=True)]
        )
        self.start = chunk.start

    def get_query_offset(self, layer_idx: int = 0) -> Tensor:
        """Return the position of each row's first column, `[A]`."""
        return self.start

    def is_finite(self) -> Tensor | None:
        """Return whether a token's keys and values are finite in all layers, `[A, Q]`."""
        found = [layer.is_finite for layer in self.layers if layer.is_finite is not None]
        return functools.reduce(torch.logical_and, found) if found else None

    def value(self) -> Cache:
        """Return the cache after the forward."""
        return Cache(
            keys=tuple(layer.keys for layer in self.layers),
            values=tuple(layer.values for layer in self.layers),
        )


def build_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Tensor | int = 0,
    kv_offset: int = 0,
    mask_function: Any = None,
    device: Any = "cpu",
    dtype: torch.dtype = torch.float32,
    **_: Any,
) -> Tensor:
    """Evaluate the library's own mask function at each row's positions.

    Returns:
      `[A, 1, Q, W]` bool, True attends; on a CPU 0 and -inf, which the fused kernel there makes of a bool
      mask in every layer.
    """
    offset = torch.as_tensor(q_offset, device=device).reshape(-1, 1, 1, 1)
    # Empty columns lie before position 0; there they attend to slot 0, for a softmax over nothing is NaN.
    query = (offset + torch.arange(q_length, device=device)[:, None]).clamp(min=0)
    key = torch.arange(kv_length, device=device)[None, None, None, :] + kv_offset
    batch = torch.arange(batch_size, device=device)[:, None, None, None]
    sees: Tensor = mask_function(batch, torch.zeros_like(key[..., :1]), query, key)
    if sees.device.type == "cpu":
        # The kernel reads a float32 mask whatever the type of the scores, but for float64.
        wide = dtype if dtype == torch.float64 else torch.float32
        sees = torch.zeros_like(sees, dtype=wide).masked_fill(~sees, -torch.inf)
    return sees.expand(batch_size, 1, q_length, kv_length)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention written out, for what the fused kernel lacks: capped scores, and sinks (one a head)."""
    scores = query @ key.transpose(-1, -2) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    hidden = ~mask if mask.dtype == torch.bool else mask == -torch.inf
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.expand(*scores.shape[:-1], 1)], dim=-1)
    weights = scores.softmax(dim=-1, dtype=scores.dtype if scores.dtype == torch.float64 else torch.float32)
    return weights[..., : key.shape[-2]].to(value.dtype) @ value


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend with grouped queries and without a copy of keys or values.

    The G query heads of a key-value head are laid out as G times as many queries of that head.

    Args:
      module: the attention layer, for messages.
      query: `[A, H * G, Q, D]`.
      key: `[A, H, W, D]`.
      value: `[A, H, W, E]`.
      attention_mask: `[A, 1, Q, W]`, from `build_mask`.
      scaling: of the scores; None is `D ** -0.5`.
      softcap: the bound of capped scores.
      s_aux: `[H * G]`, the sink of each head.

    Returns:
      `[A, Q, H * G, E]`, contiguous, for some layers take a view of it; and no weights.

    Raises:
      UnsupportedModelError: if the mask is not one that `build_mask` made.
    """
    if attention_mask is None or attention_mask.shape[1] != 1:
        raise UnsupportedModelError(
            f"its {type(module).__name__} attends by masks of its own, one a head or none, and not by those "
            f"of transformers' AttentionMaskInterface, so rows of unequal length would see what they must not"
        )
    groups, length = query.shape[1] // key.shape[1], query.shape[2]
    grouped = rearrange(query, "a (h g) q d -> a h (g q) d", g=groups)
    mask = attention_mask
    if length > 1:  # one query's mask broadcasts
        mask = repeat(mask, "a 1 q w -> a 1 (g q) w", g=groups)
    if softcap is None and s_aux is None:
        out = scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scaling)
    else:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        sinks = None
        if s_aux is not None:
            sinks = repeat(s_aux, "(h g) -> 1 h (g q) 1", g=groups, q=length).to(query.dtype)
        out = _attend(grouped, key, value, mask, scale, softcap, sinks)
    return rearrange(out, "a h (g q) d -> a q (h g) d", g=groups).contiguous(), None


def attend_counted(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
    """`attend`, and leave the count on the layer."""
    vars(module)[_COUNT] = vars(module).get(_COUNT, 0) + 1
    return attend(module, *args, **kwargs)


def take_count(module: nn.Module) -> int:
    """Return how often a layer attended in a dry run, and forget it."""
    return int(vars(module).pop(_COUNT, 0))


AttentionInterface.register(IMPLEMENTATION, attend)
AttentionInterface.register(DRY_RUN, attend_counted)
AttentionMaskInterface.register(IMPLEMENTATION, build_mask)
AttentionMaskInterface.register(DRY_RUN, build_mask)
