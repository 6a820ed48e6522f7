"""Engines measured against each other: interleaved in one process, as medians and spreads."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """What one engine took for one workload."""

    seconds: tuple[float, ...]
    """Wall time of each round."""
    tokens: int
    """Tokens sampled in a round."""

    @property
    def median_s(self) -> float:
        """Median wall time of a round in seconds."""
        return statistics.median(self.seconds)

    @property
    def tokens_per_s(self) -> float:
        """Sampled tokens per second in the median round."""
        return self.tokens / self.median_s

    @property
    def spread(self) -> float:
        """Slowest less fastest round, as a share of the median."""
        return (max(self.seconds) - min(self.seconds)) / self.median_s


def interleave(
    engines: Mapping[str, Callable[[], int]], rounds: int, say: Callable[[str], None]
) -> dict[str, Sample]:
    """Run the engines in turn, A B A B, so that a drift of the machine hits all of them.

    Args:
      engines: by name; each call does the whole work and returns the number of sampled tokens.
      rounds: counted rounds, after one that only warms up.
      say: told of each run as it ends.
    """
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    tokens = dict.fromkeys(engines, 0)
    for turn in range(rounds + 1):
        for name, run in engines.items():
            gc.collect()
            start = time.perf_counter()
            tokens[name] = run()
            elapsed = time.perf_counter() - start
            say(f"{name}: {'warm-up' if turn == 0 else f'round {turn} of {rounds}'}, {elapsed:.1f} s")
            if turn > 0:
                seconds[name].append(elapsed)
    return {name: Sample(tuple(seconds[name]), tokens[name]) for name in engines}


def paired_ratios(one: Sample, other: Sample) -> list[float]:
    """Return how many times faster `one` was than `other`, round by round, smallest first.

    Speed is in tokens per second: engines may sample different numbers of tokens.
    """
    scale = one.tokens / other.tokens if other.tokens else 1.0
    pairs = zip(one.seconds, other.seconds, strict=True)
    return sorted(scale * theirs / ours for ours, theirs in pairs)
