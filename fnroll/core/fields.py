"""What a record has for every token: the one table that all that appends, cuts or copies tokens goes over.

It names no tensor type, so that who only reads records need not wait for torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PerToken:
    """A field with an entry for each token of a record."""

    dtype: str
    """Of the tensors that hold it, as torch names it."""
    empty: int | float | bool
    """What an entry holds where there is nothing to say: beyond the record, or at a token nobody sampled."""
    is_vector: bool = False
    """Whether an entry is a list of numbers, filled up with `empty`; such a field is kept if asked for."""


PER_TOKEN: Mapping[str, PerToken] = {
    "tokens": PerToken("int64", 0),
    "loss_mask": PerToken("bool", False),
    "log_probs": PerToken("float32", 0.0),
    "weight_versions": PerToken("int32", -1),
    "support": PerToken("int32", -1, is_vector=True),
}
"""By name, the same in the state, on the host and in a file."""
