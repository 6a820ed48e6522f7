"""The serial oracle: what a record must be, in the plainest code that says it.

One record at a time, no cache, a full forward for every token, and no code of the fast path but the noise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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


Respond = Callable[[list[int], int], list[int] | None]
"""`(ids of a turn, its index) -> ids to append before the next one`, None if no tool is wanted."""


@dataclass(frozen=True)
class OracleConversation:
    """What the oracle says a record of several turns is."""

    tokens: list[int]
    loss_mask: list[bool]
    log_probs: list[float]
    """Nats; 0 where the mask is False."""
    reason: str
    num_turns: int


def _end(
    tokens: list[int], mask: list[bool], log_probs: list[float], turns: int, reason: str
) -> OracleConversation:
    return OracleConversation(tokens, mask, log_probs, reason, turns)


def roll_out_turns(
    forward: Forward,
    prompt: Sequence[int],
    respond: Respond,
    *,
    max_length: int,
    max_turns: int,
    per_turn: int | None,
    stop_ids: Sequence[int],
    **identity: Any,
) -> OracleConversation:
    """Roll out one record of many turns; the remaining arguments are those of `roll_out`."""
    tokens, mask, log_probs = list(prompt), [False] * len(prompt), [0.0] * len(prompt)
    for turn in range(max_turns):
        limit = max_length if per_turn is None else min(max_length, len(tokens) + per_turn)
        part = roll_out(forward, tokens, limit=limit, stop_ids=stop_ids, **identity)
        sampled = part.tokens[len(tokens) :]
        tokens, log_probs = part.tokens, log_probs + part.log_probs
        mask = mask + [True] * len(sampled)
        end = functools.partial(_end, tokens, mask, log_probs, turn + 1)
        if not part.stopped:
            return end("length" if limit == max_length else "turn_length")
        output = respond(sampled, turn)
        if output is None:
            return end("eos")
        if turn + 1 == max_turns:
            return end("max_turns")
        if len(tokens) + len(output) >= max_length:
            return end("tool_output")
        tokens, mask = tokens + output, mask + [False] * len(output)
        log_probs = log_probs + [0.0] * len(output)
    raise ValueError(f"max_turns is {max_turns}; it must be at least 1")
