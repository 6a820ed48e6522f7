"""Where the time of a rollout went, and what it bought."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Profile:
    """Counts and times of one `generate` call."""

    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of each stage: render, load, admit, prefill, decode, poll, turns, park, tools."""
    wall_s: float = 0.0
    """Wall time of the whole call."""
    steps: int = 0
    """Decode steps."""
    forwards: int = 0
    """Forwards of the model: decode steps and prefill chunks."""
    tokens: int = 0
    """Tokens sampled."""
    fed_tokens: int = 0
    """Tokens that the model was fed, without padding."""
    least_tokens: int = 0
    """Tokens that the records which ended must be fed if nothing is twice: every distinct prefix of their
    prompts once, and all that was sampled or that tools said, but for the last token of each."""
    shared_tokens: int = 0
    """Tokens whose keys and values a record took from another's instead of being fed them."""
    unparked_tokens: int = 0
    """Tokens whose keys and values came back from the pool."""
    pool_bytes: int = 0
    """Memory of the pool."""
    pool_peak: int = 0
    """Most pool slots that were in use at the same time."""
    padded_tokens: int = 0
    """Columns that were computed for nothing: idle rows and prefill padding."""
    records: int = 0
    """Records that ended."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    @property
    def mean_live_rows(self) -> float:
        """Rows that sampled a token, averaged over the decode steps."""
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def fed_per_token(self) -> float:
        """Tokens fed for each token sampled."""
        return self.fed_tokens / self.tokens if self.tokens else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Sampled tokens per second of wall time."""
        return self.tokens / self.wall_s if self.wall_s else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as JSON-able values."""
        counts = {name: value for name, value in vars(self).items() if name != "seconds"}
        derived = {
            "mean_live_rows": self.mean_live_rows,
            "fed_per_token": self.fed_per_token,
            "tokens_per_s": self.tokens_per_s,
        }
        return {**counts, **derived, "seconds": dict(self.seconds)}
