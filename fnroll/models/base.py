"""What the shell needs to know of a model: its pure function and its sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fnroll.core.model import ModelFn, init_cache
from fnroll.core.types import Cache


@dataclass(frozen=True, eq=False)
class Model:
    """A language model as a pure function, with what is fixed about it."""

    fn: ModelFn
    """`(params, chunk, cache) -> (logits [A, V], cache)`."""
    params: Any
    """First argument of `fn`."""
    cache_shapes: tuple[tuple[int, int, int], ...]
    """Of each layer: heads, head size of keys, head size of values."""
    vocab_size: int
    """V: width of the logits; ids are below it."""
    max_positions: int | None = None
    """Positions the model knows; None when it knows no bound."""
    dtype: torch.dtype = torch.float32
    """Of keys and values."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    stop_ids: tuple[int, ...] = ()
    """Ids that end a turn by the model's own configuration."""
    repetition_penalty: float = 1.0
    """Of the model's own generation configuration."""
    name: str = "model"

    def init_cache(self, rows: int, max_length: int) -> Cache:
        """Return an empty cache for `rows` rows of `max_length` tokens."""
        return init_cache(self.cache_shapes, rows, max_length, self.dtype, self.device)

    def refresh(self) -> Sequence[str]:
        """Take up parameters that were replaced since the last call; return the names of those."""
        return ()

    def named_weights(self) -> Sequence[tuple[str, torch.Tensor]]:
        """Return the weights that `fn` reads without being given them, by name."""
        return ()
