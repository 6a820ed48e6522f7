"""The workloads that measure fnroll against itself: log-probs, and tools against decoding."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from fnroll.bench.engine import Subject
from fnroll.bench.gap import measure_gap
from fnroll.bench.overlap import TURN_TOKENS, OverlapResult, run_overlap
from fnroll.bench.prompts import read_questions
from fnroll.bench.row import Row


def measure_gap_row(subject: Subject) -> list[Row]:
    """Measure the distance of recorded log-probs from a training forward, in nats."""
    gap = measure_gap(subject.module, subject.tokenizer, read_questions())
    return [
        {
            "workload": "gap",
            "engine": "fnroll-eager",
            "dtype": subject.dtype,
            "tokens_per_s": None,
            "mean_nats": gap.mean,
            "worst_nats": gap.worst,
            "tokens": gap.tokens,
        }
    ]


def measure_overlap(rounds: int, say: Callable[[str], None]) -> list[Row]:
    """Measure tool latencies; one row for each."""
    results = [run_overlap(tokens_per_turn=count, rounds=rounds, say=say) for count in TURN_TOKENS]
    return [_overlap_row(result) for some in results for result in some]


def _overlap_row(result: OverlapResult) -> Row:
    return {
        "workload": "tools",
        "engine": "fnroll-eager",
        "dtype": "float64",
        "tokens_per_s": None,
        "tokens_per_turn": result.tokens_per_turn,
        "returning": result.returning,
        "latency_s": result.latency_s,
        "wall_s": statistics.median(result.walls),
        "decode_bound_s": statistics.median(result.decodes),
        "tool_bound_s": result.tool_s,
        "times_bound": result.ratio,
        "times_schedule_bound": result.schedule_ratio,
    }
