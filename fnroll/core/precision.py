"""In which precision probabilities are computed."""

from __future__ import annotations

import torch
from torch import Tensor


def widen(tensor: Tensor) -> Tensor:
    """Return `tensor` in float32, or in float64 if it is."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
