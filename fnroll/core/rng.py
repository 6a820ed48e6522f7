"""Counter-based random numbers: noise is a function of a key and a position, never of a generator.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) in integer tensor
operations. 32-bit words are kept in `int64`, the only integer type that every backend multiplies exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
# The largest float32 below one: a uniform of exactly one would make the noise infinite.
_BELOW_ONE = 1.0 - 2.0**-24

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def _multiply(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    product = b * a  # wraps modulo 2**64, which keeps all 64 bits of the unsigned product
    return (product >> 32) & _MASK, product & _MASK


def philox(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Map a 128-bit counter and a 64-bit key to 128 random bits.

    Args:
      counter: four `int64` tensors of 32-bit words, least significant first; they broadcast.
      key: two such tensors.

    Returns:
      Four `int64` tensors of 32-bit words, of the broadcast shape.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(_MULTIPLIERS[0], c0)
        high1, low1 = _multiply(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def init_keys(seed: int, step: int, prompt_id: Tensor, sample: Tensor) -> Tensor:
    """Return the key of every record, `[R, 2]` int64: a function of its identity and of nothing else.

    Args:
      seed: of the run; its low 64 bits count.
      step: of the training loop; its low 32 bits count.
      prompt_id: `[R]` int64, what tells prompts apart; all 64 bits count.
      sample: `[R]` int64, index of the sample of that prompt; its low 32 bits count.
    """
    zero = torch.zeros_like(prompt_id)
    counter = (prompt_id & _MASK, (prompt_id >> 32) & _MASK, sample & _MASK, zero + (step & _MASK))
    w0, w1, _, _ = philox(counter, (zero + (seed & _MASK), zero + ((seed >> 32) & _MASK)))
    return torch.stack((w0, w1), dim=-1)


def gumbel(key: Tensor, position: Tensor, size: int) -> Tensor:
    """Draw standard Gumbel noise, `[B, size]` float32, for one token position of each row.

    Adding it to log-probabilities and taking the largest draws from their distribution (Gumbel-max).
    Column `v` uses word `v % 4` of block `v // 4`, so a vocabulary's shard draws what the whole would.

    Args:
      key: `[B, 2]` int64, of each row's record.
      position: `[B]` int64, index of the token to be drawn in its record.
      size: number of columns (the vocabulary).
    """
    block = torch.arange((size + 3) // 4, device=key.device)[None, :]
    zero = torch.zeros_like(block)
    counter = (block, position[:, None], zero, zero)
    words = torch.stack(philox(counter, (key[:, :1], key[:, 1:])), dim=-1)
    # Float32 resolves the side near zero finely; from there comes the largest noise, and so the winner.
    uniform = ((words.flatten(1)[:, :size].float() + 0.5) * 2.0**-32).clamp(max=_BELOW_ONE)
    return -torch.log(-torch.log1p(-uniform))
