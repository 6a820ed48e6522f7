"""One clear sentence for each bad argument: its name, what it is, what it must be."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor


def check_choice(name: str, value: object, choices: Collection[object]) -> None:
    """Require one of the given values."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, choices))}")


def check_number(name: str, value: float, *, least: float, most: float = math.inf) -> None:
    """Require a number in `[least, most]`; infinity is a number here, NaN is not."""
    if not least <= value <= most:
        bound = f"at least {least:g}" + (f" and at most {most:g}" if most < math.inf else "")
        raise ValueError(f"{name} is {value!r}; it must be {bound}")


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


def widen(tensor: Tensor) -> Tensor:
    """Return the tensor in float32, or in float64 if it is."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def select(tensor: Tensor, loss_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the tensor in `dtype` with 0 off the mask.

    What the mask hides must go before the first `exp`: inf times 0 is NaN, and the gradient of a product
    with 0 is NaN too, while the gradient of `where` is 0.
    """
    return torch.where(loss_mask, tensor.to(dtype), 0.0)
