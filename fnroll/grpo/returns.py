"""Returns of rewards that arrive within a record, as at the end of a turn."""

from __future__ import annotations

import torch
from torch import Tensor

from fnroll.checks import check_number
from fnroll.core.precision import widen
from fnroll.grpo.checks import check_mask, check_shape, select


def token_returns(rewards: Tensor, loss_mask: Tensor, *, gamma: float = 1.0) -> Tensor:
    """Sum at every sampled token the rewards from there on, tool output between turns passed over.

    Time goes by with sampled tokens: tool output neither discounts what comes after it nor cuts it off.

    Args:
      rewards: `[R, T]` float, each at a sampled token; what lies off the mask is not read.
      loss_mask: `[R, T]` bool, True on sampled tokens.
      gamma: discount per sampled token.

    Returns:
      `[R, T]` float32 or float64, 0 off the mask.

    Raises:
      ValueError: naming the argument that does not fit.
    """
    check_mask(loss_mask)
    check_shape("rewards", rewards, loss_mask)
    check_number("token_returns", "gamma", gamma, least=0, most=1)
    dtype = widen(rewards).dtype
    rewards = select(rewards, loss_mask, dtype)
    running = rewards.new_zeros(rewards.shape[0])
    columns = []
    for reward, sampled in zip(reversed(rewards.unbind(1)), reversed(loss_mask.unbind(1)), strict=True):
        running = torch.where(sampled, reward + gamma * running, running)
        columns.append(running)
    returns = torch.stack(columns[::-1], dim=1) if columns else rewards
    return select(returns, loss_mask, dtype)
