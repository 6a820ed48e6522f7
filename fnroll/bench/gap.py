"""How far recorded log-probs are from those of a training forward over the whole record."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fnroll.shell.generate import generate
from fnroll.shell.record import RolloutRecord


@dataclass(frozen=True)
class Gap:
    """Absolute differences of log-probs in nats, over all sampled tokens."""

    mean: float
    worst: float
    tokens: int


def _differences(model: Any, record: RolloutRecord) -> list[float]:
    ids = torch.tensor([record.tokens], device=model.device)
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits[0, :-1].float()
    scored = logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0].tolist()
    recorded, mask = record.log_probs or (), record.loss_mask or ()
    return [abs(a - b) for a, b, m in zip(recorded[1:], scored, mask[1:], strict=True) if m]


def measure_gap(
    model: Any, tokenizer: Any, questions: Sequence[str], *, new_tokens: int = 64, rows: int = 16
) -> Gap:
    """Roll out one answer to each question at temperature 1, and score each by one forward of its own."""
    batch = generate(
        model, tokenizer, questions, max_length=128 + new_tokens, rows=rows, max_new_tokens=new_tokens
    )
    found = [difference for record in batch for difference in _differences(model, record)]
    return Gap(statistics.fmean(found), max(found), len(found))
