"""From a model's logits to the distribution a token is drawn from, and the draw.

The same operations in the same order as the processors of transformers' `generate()`: repetition penalty
(Keskar et al. 2019, arXiv:1909.05858), temperature, top-k (Fan et al. 2018, arXiv:1805.04833), top-p
(Holtzman et al. 2020, arXiv:1904.09751). All parameters are tensors, one value a row, so that changing
one compiles nothing anew.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fnroll.core.precision import widen
from fnroll.core.rng import gumbel
from fnroll.core.types import SamplingParams

# Below this temperature the largest logit is taken off first: the quotient could overflow. Above it, it
# cannot, and the plain quotient is the one that `generate()` computes.
_SMALL_TEMPERATURE = 1e-3


def penalise(logits: Tensor, tokens: Tensor, length: Tensor, penalty: Tensor) -> Tensor:
    """Make the tokens that a row already holds less likely, each once however often it occurs.

    Args:
      logits: `[B, V]`.
      tokens: `[B, T]` int64, the row's own record: prompt, responses and tool output.
      length: `[B]` int64; what lies beyond is not history.
      penalty: `[B]`; positive logits are divided by it, negative ones multiplied.
    """
    vocabulary = logits.shape[-1]
    index = torch.arange(tokens.shape[1], device=tokens.device)
    held = torch.where(index < length[:, None], tokens, vocabulary)
    line = torch.arange(tokens.shape[0], device=tokens.device)[:, None].expand_as(held)
    seen = torch.zeros((logits.shape[0], vocabulary + 1), dtype=torch.bool, device=logits.device)
    seen = seen.index_put((line, held), torch.ones_like(held, dtype=torch.bool))[:, :vocabulary]
    factor = penalty[:, None].to(logits.dtype)
    return torch.where(seen, torch.where(logits < 0, logits * factor, logits / factor), logits)


def scale(logits: Tensor, temperature: Tensor) -> Tensor:
    """Divide `[B, V]` logits by `[B]` temperatures; any temperature above 0 gives a distribution."""
    largest = logits.amax(dim=-1, keepdim=True)
    shift = torch.where(temperature[:, None] < _SMALL_TEMPERATURE, largest, torch.zeros_like(largest))
    return (logits - shift) / temperature[:, None].to(logits.dtype)


def keep_top_k(logits: Tensor, top_k: Tensor, max_top_k: int) -> Tensor:
    """Set all but each row's `top_k` largest logits to -inf; ties at the threshold all stay.

    Args:
      logits: `[B, V]`.
      top_k: `[B]` int64; 0 keeps all.
      max_top_k: static bound of `top_k`; more than V means V.
    """
    bound = min(max_top_k, logits.shape[-1])
    largest = torch.topk(logits, bound, dim=-1).values
    threshold = largest.gather(-1, (top_k[:, None] - 1).clamp(0, bound - 1))
    remove = (logits < threshold) & (top_k[:, None] > 0)
    return logits.masked_fill(remove, -torch.inf)


def keep_top_p(logits: Tensor, top_p: Tensor) -> Tensor:
    """Set the least likely tokens to -inf that together hold at most 1 - `top_p`; the likeliest stays.

    Args:
      logits: `[B, V]`.
      top_p: `[B]` float64; 1 keeps all.
    """
    ordered, order = torch.sort(logits, dim=-1)
    mass = ordered.softmax(dim=-1).cumsum(dim=-1)
    remove = mass <= (1.0 - top_p[:, None]).to(mass.dtype)
    last = torch.arange(logits.shape[-1], device=logits.device) == logits.shape[-1] - 1
    remove = remove & ~last & (top_p[:, None] < 1.0)
    return logits.masked_fill(torch.zeros_like(remove).scatter(-1, order, remove), -torch.inf)


def process(logits: Tensor, params: SamplingParams, history: tuple[Tensor, Tensor] | None) -> Tensor:
    """Return the logits of the distribution that the next token of each row is drawn from.

    A row of temperature 0 keeps its penalised logits, with nothing cut off: its token is the most likely
    one, and its log-prob that of temperature 1, which is what a trainer can compare.

    Args:
      logits: `[B, V]`, as the model gave them.
      params: of each row, `[B]` tensors.
      history: of each row, the record's tokens `[B, T]` int64 and its length `[B]` int64; only the
        repetition penalty reads it.

    Returns:
      `[B, V]` in float32 or float64.
    """
    scores = widen(logits)
    if params.use_penalty and history is not None:
        scores = penalise(scores, *history, params.repetition_penalty)
    if not params.use_noise:
        return scores
    greedy = params.temperature == 0
    scores = scale(scores, torch.where(greedy, 1.0, params.temperature))
    if params.max_top_k:
        scores = keep_top_k(scores, torch.where(greedy, 0, params.top_k), params.max_top_k)
    if params.use_top_p:
        scores = keep_top_p(scores, torch.where(greedy, 1.0, params.top_p))
    return scores


def find_support(scores: Tensor, params: SamplingParams, size: int) -> tuple[Tensor, Tensor]:
    """Bound what each row draws from to its `size` likeliest tokens, and say which they are.

    Args:
      scores: `[B, V]`, processed logits.
      params: of each row, `[B]` tensors; only the temperature is read.
      size: static; K.

    Returns:
      The scores, -inf outside the support, and the support `[B, K]` int32, likeliest first, filled up with
      -1. A row of temperature 0 is left alone: its support is the whole vocabulary, all -1.
    """
    values, ids = torch.topk(scores, min(size, scores.shape[-1]), dim=-1)
    bounded = torch.full_like(scores, -torch.inf).scatter(-1, ids, values)
    greedy = (params.temperature == 0)[:, None]
    kept = torch.where(greedy | values.isinf(), -1, ids).to(torch.int32)
    kept = torch.nn.functional.pad(kept, (0, size - kept.shape[-1]), value=-1)
    return torch.where(greedy, scores, bounded), kept


def draw(scores: Tensor, params: SamplingParams, key: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    """Draw a token of each row, with the noise of its record's key at its position.

    Args:
      scores: `[B, V]`, processed logits.
      params: of each row, `[B]` tensors; only the temperature is read.
      key: `[B, 2]` int64.
      position: `[B]` int64, index that the token will have in its record.

    Returns:
      Tokens `[B]` int64 and their log-probs `[B]` float32 in nats.
    """
    perturbed = scores
    if params.use_noise:
        noise = gumbel(key, position, scores.shape[-1])
        perturbed = scores + torch.where(params.temperature[:, None] == 0, 0.0, noise)
    token = perturbed.argmax(dim=-1)
    log_prob = scores.gather(-1, token[:, None])[:, 0] - scores.logsumexp(dim=-1)
    return token, log_prob.float()
