"""What a model is to the steps: a pure function of parameters, a chunk of tokens and a cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fnroll.core.buffer import put
from fnroll.core.output import ModelOutput
from fnroll.core.tree import pytree, static
from fnroll.core.types import Cache


@pytree
class Chunk:
    """The tokens that one forward feeds: Q columns for each of A rows, aligned to the right.

    The last column is the last token a row feeds. Columns before a row's first token are empty: they sit
    at position 0 and write to the sink, and what a model computes for them is never read.
    """

    tokens: Tensor
    """`[A, Q]` int64."""
    start: Tensor
    """`[A]` int64: position of column 0; negative where the row feeds fewer than Q tokens."""
    slots: Tensor
    """`[A, Q]` int64: where the cache keeps each column; the position, or the sink T."""
    rows: Tensor | None
    """`[A]` int64: which rows of the cache; None for the first A in order, which copies nothing."""
    window: int = static()
    """W: attention reads the slots below it; at least every row's length."""
    needs_logits: bool = static(default=True)
    """Whether anybody reads the logits; a model that computes them all the same is slower, not wrong."""

    @property
    def positions(self) -> Tensor:
        """`[A, Q]` int64: position of each column; 0 for the empty ones."""
        column = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return (self.start[:, None] + column).clamp(min=0)


ModelFn = Callable[[Any, Chunk, Cache], ModelOutput]
"""`(params, chunk, cache) -> output`: the logits of the last column, and the cache with the chunk in it."""


def write_layer(buffer: Tensor, new: Tensor, chunk: Chunk) -> Tensor:
    """Return a layer's keys or values `[B, T+1, H, D]` with those of a chunk, `[A, Q, H, D]`, written.

    What is not finite is written as 0: a masked slot counts 0 times itself, which would be NaN for tokens
    before it and for the row's next record. `ModelOutput.is_finite` says that it was there.
    """
    rows = chunk.rows
    new = new.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    if rows is None:
        rows = torch.arange(new.shape[0], device=buffer.device)
    return put(buffer, (rows[:, None].expand_as(chunk.slots), chunk.slots), new.to(buffer.dtype))


def read_layer(buffer: Tensor, chunk: Chunk) -> Tensor:
    """Return what the chunk's rows may attend to in a layer, `[A, W, H, D]`."""
    seen = buffer[:, : chunk.window]
    return seen[: chunk.start.shape[0]] if chunk.rows is None else seen[chunk.rows]


def init_cache(
    shapes: tuple[tuple[int, int, int], ...],
    rows: int,
    max_length: int,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> Cache:
    """Return an empty cache.

    Args:
      shapes: of each layer: heads, head size of keys, head size of values.
      rows: B.
      max_length: T; a slot more is allocated, the sink.
      dtype: of keys and values.
      device: of keys and values.
    """

    def layer(heads: int, size: int) -> Tensor:
        return torch.zeros((rows, max_length + 1, heads, size), dtype=dtype, device=device)

    return Cache(
        keys=tuple(layer(heads, size) for heads, size, _ in shapes),
        values=tuple(layer(heads, size) for heads, _, size in shapes),
    )
