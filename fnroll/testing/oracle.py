"""The serial oracle: what a record must be, in the plainest code that says it.

One record at a time, no cache, a full forward for every token, and no code of the fast path but the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fnroll.core.rng import gumbel, init_keys

Forward = Callable[[list[int]], Tensor]
"""`ids -> logits [V]` of the token after them."""


@dataclass(frozen=True)
class OracleRecord:
    """What the oracle says a record is."""

    tokens: list[int]
    log_probs: list[float]
    """Nats, of every token after the prompt."""
    margins: list[float]
    """By how much each token won: what a numerical error must exceed to change it."""
    stopped: bool
    """Whether a stop id ended it, and not the limit."""


@dataclass(frozen=True)
class OracleSampling:
    """The sampling parameters, as numbers."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0


def oracle_scores(logits: Tensor, history: Sequence[int], sampling: OracleSampling) -> Tensor:
    """Return the processed logits `[V]` of one record."""
    scores = logits.clone()
    for token in set(history):
        score = scores[token]
        scores[token] = (
            score * sampling.repetition_penalty if score < 0 else score / sampling.repetition_penalty
        )
    if sampling.temperature == 0:
        return scores
    scores = (scores - scores.max()) / sampling.temperature
    if sampling.top_k:
        kth = sorted(scores.tolist(), reverse=True)[min(sampling.top_k, len(scores)) - 1]
        scores[scores < kth] = -torch.inf
    if sampling.top_p < 1:
        probs, mass = scores.softmax(-1).tolist(), 0.0
        for token in scores.argsort(stable=True).tolist()[:-1]:  # from the least likely; the likeliest stays
            mass += probs[token]
            if mass > 1 - sampling.top_p:
                break
            scores[token] = -torch.inf
    return scores


def roll_out(
    forward: Forward,
    prompt: Sequence[int],
    *,
    limit: int,
    stop_ids: Sequence[int],
    sampling: OracleSampling,
    seed: int = 0,
    step: int = 0,
    prompt_id: int = 0,
    sample: int = 0,
) -> OracleRecord:
    """Roll out one record, of at most `limit` tokens."""
    key = init_keys(seed, step, torch.tensor([prompt_id]), torch.tensor([sample]))
    tokens, log_probs, margins = list(prompt), [], []
    while len(tokens) < limit:
        scores = oracle_scores(forward(tokens), tokens, sampling)
        noise = gumbel(key, torch.tensor([len(tokens)]), len(scores))[0]
        perturbed = scores + noise if sampling.temperature > 0 else scores
        best = perturbed.topk(2).values
        token = int(perturbed.argmax())
        tokens.append(token)
        log_probs.append(float(scores.log_softmax(-1)[token]))
        margins.append(float(best[0] - best[1]))
        if token in stop_ids:
            return OracleRecord(tokens, log_probs, margins, stopped=True)
    return OracleRecord(tokens, log_probs, margins, stopped=False)
