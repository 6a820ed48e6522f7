"""Whether a record is the oracle's, and if not, whether a numerical tie excuses it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fnroll.records.record import RolloutRecord
from fnroll.testing.oracle import OracleRecord


@dataclass(frozen=True)
class Certificate:
    """How a record compares with the oracle's."""

    same_tokens: bool
    first_difference: int | None
    """Index of the first token that differs."""
    margin: float | None
    """By how much the oracle's token won there; below the numerical error it is a tie, above it a bug."""
    max_log_prob_error: float
    """Nats, over the sampled tokens before the first difference."""


def compare_sampled(tokens: Sequence[int], log_probs: Sequence[float], oracle: OracleRecord) -> Certificate:
    """Compare a whole tape, prompt and all, with the oracle's.

    Args:
      tokens: of the record.
      log_probs: of the record, in nats, one a token; those of the prompt are not read.
      oracle: what the record should be.
    """
    prompt = len(oracle.tokens) - len(oracle.log_probs)
    pairs = zip(tokens, oracle.tokens, strict=False)
    different = next((index for index, (a, b) in enumerate(pairs) if a != b), None)
    if different is None and len(tokens) != len(oracle.tokens):
        different = min(len(tokens), len(oracle.tokens))
    end = len(tokens) if different is None else different
    errors = [abs(log_probs[i] - oracle.log_probs[i - prompt]) for i in range(prompt, end)]
    margin = None
    if different is not None and prompt <= different < len(oracle.tokens):
        margin = oracle.margins[different - prompt]
    return Certificate(different is None, different, margin, max(errors, default=0.0))


def certify(record: RolloutRecord, oracle: OracleRecord) -> Certificate:
    """Compare a rolled-out record with the oracle's.

    Raises:
      ValueError: if the record holds no rollout or no log-probs.
    """
    if record.tokens is None or record.log_probs is None:
        raise ValueError(f"{record.label} holds no rollout with log-probs")
    return compare_sampled(record.tokens, record.log_probs, oracle)
