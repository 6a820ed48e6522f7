"""From log-ratios to ratios, without overflow."""

from __future__ import annotations

from torch import Tensor

LOG_RATIO_BOUND = 20.0
"""A log-ratio is taken no further than this: the ratio stays finite, and beyond it the gradient is 0."""


def to_ratio(log_ratio: Tensor) -> Tensor:
    """Return `exp(log_ratio)`, of any shape, bounded by `LOG_RATIO_BOUND` on either side."""
    return log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
