"""Engines measured against each other: interleaved in one process, as medians and spreads."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fnroll.bench.engine import EngineRun
from fnroll.bench.meter import count_graphs, peak_memory, reset_peak_memory


@dataclass
class Sample:
    """What one engine did for one workload, a counted round an entry."""

    rounds: list[EngineRun] = field(default_factory=list)
    peak_memory: int | None = None
    """Bytes, the most of all its rounds."""
    recompiles: int = 0
    """Graphs compiled in counted rounds."""
    error: str | None = None
    """Why the engine failed; there are no more rounds then."""

    @property
    def speeds(self) -> list[float]:
        """Sampled tokens per second of each round."""
        return [round_.tokens / round_.seconds for round_ in self.rounds]

    @property
    def tokens_per_s(self) -> float:
        """Sampled tokens per second in the median round."""
        return statistics.median(self.speeds)

    @property
    def spread(self) -> float:
        """Fastest less slowest round, as a share of the median."""
        return (max(self.speeds) - min(self.speeds)) / self.tokens_per_s


def describe(error: BaseException) -> str:
    """Return an error as one line: its class and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def interleave(
    engines: Mapping[str, Callable[[], EngineRun]], rounds: int, say: Callable[[str], None]
) -> tuple[dict[str, Sample], KeyboardInterrupt | None]:
    """Run the engines in turn, A B A B, so that a drift of the machine hits all of them.

    An engine that fails is left out from then on; its sample says why.

    Args:
      engines: by name; each call does the whole work once.
      rounds: counted rounds. The caller has warmed the engines up.
      say: told of each run as it ends.

    Returns:
      Samples, and the Ctrl-C that cut the rounds short, for the caller to raise once it has kept them.
    """
    samples = {name: Sample() for name in engines}
    gc.collect()
    gc.freeze()  # so that the collection before each run looks at what the runs made, not at all of torch
    try:
        for turn in range(1, rounds + 1):
            for name, run in engines.items():
                if samples[name].error is None:
                    _run(run, samples[name])
                    last = samples[name].error or f"{samples[name].rounds[-1].seconds:.2f} s"
                    say(f"{name}: round {turn} of {rounds}, {last}")
    except KeyboardInterrupt as interrupt:
        return samples, interrupt
    finally:
        gc.unfreeze()
    return samples, None


def _run(run: Callable[[], EngineRun], sample: Sample) -> None:
    gc.collect()
    reset_peak_memory()
    graphs = count_graphs()
    try:
        outcome = run()
    except Exception as error:  # whatever a peer raises is a result of the benchmark
        sample.error = describe(error)
        return
    sample.rounds.append(outcome)
    sample.recompiles += count_graphs() - graphs
    peak = peak_memory()
    if peak is not None:
        sample.peak_memory = max(peak, sample.peak_memory or 0)


def paired_ratios(one: Sample, other: Sample) -> list[float]:
    """Return how many times faster `one` was than `other`, round by round, smallest first.

    Speed is in tokens per second: engines may sample different numbers of tokens. Rounds that only one of
    the two has are left out.
    """
    return sorted(ours / theirs for ours, theirs in zip(one.speeds, other.speeds, strict=False))
