"""How far recorded log-probs are from those of a training forward over the whole record."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fnroll.records.training import to_training
from fnroll.rollout.generate import generate
from fnroll.rollout.score import score


@dataclass(frozen=True)
class Gap:
    """Absolute differences of log-probs in nats, over all sampled tokens."""

    mean: float
    worst: float
    tokens: int


def measure_gap(
    model: Any, tokenizer: Any, questions: Sequence[str], *, new_tokens: int = 64, rows: int = 16
) -> Gap:
    """Roll out one answer to each question at temperature 1, and score each by one forward of its own."""
    batch = generate(
        model, tokenizer, questions, max_length=128 + new_tokens, rows=rows, max_new_tokens=new_tokens
    )
    found: list[float] = []
    for record in batch:
        training = to_training([record])
        with torch.no_grad():
            scored = score(model, training)
        found += (scored - training.old_log_probs)[training.loss_mask].abs().tolist()
    return Gap(statistics.fmean(found), max(found), len(found))
