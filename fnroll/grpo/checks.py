"""What the tensors of a loss must be, and what of them counts."""

from __future__ import annotations

import torch
from torch import Tensor


def check_mask(loss_mask: Tensor) -> None:
    """Require a bool tensor `[R, T]`."""
    if loss_mask.dtype != torch.bool or loss_mask.ndim != 2:
        raise ValueError(
            f"loss_mask is {loss_mask.dtype} of shape {list(loss_mask.shape)}; it must be torch.bool [R, T]"
        )


def check_shape(name: str, tensor: Tensor | None, loss_mask: Tensor) -> None:
    """Require the shape of `loss_mask`; None passes."""
    if tensor is not None and tensor.shape != loss_mask.shape:
        raise ValueError(
            f"{name} has shape {list(tensor.shape)} and loss_mask {list(loss_mask.shape)}; "
            f"they must be one shape"
        )


def select(tensor: Tensor, loss_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the tensor in `dtype` with 0 off the mask.

    What the mask hides must go before the first `exp`: inf times 0 is NaN, and the gradient of a product
    with 0 is NaN too, while the gradient of `where` is 0.
    """
    return torch.where(loss_mask, tensor.to(dtype), 0.0)
