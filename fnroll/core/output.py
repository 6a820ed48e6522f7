"""What a forward of a model gives."""

from __future__ import annotations

from torch import Tensor

from fnroll.core.tree import pytree
from fnroll.core.types import Cache


@pytree
class ModelOutput:
    """The result of one forward over a chunk of A rows and Q columns."""

    logits: Tensor
    """`[A, V]`, of the last column; if none are needed, any `[A, V]`."""
    cache: Cache
    """The cache with the chunk's keys and values in it."""
    is_finite: Tensor | None = None
    """`[A, Q]` bool, whether a token's keys and values are finite; None from a model that does not say."""
    experts: Tensor | None = None
    """`[A, Q, L, K]`, the experts that each of L routers chose for a token; None where there are none, or
    nobody asked for them."""
