"""Runs the workloads and says what was measured, as tables and JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from fnroll.bench.gap import measure_gap
from fnroll.bench.measure import paired_ratios
from fnroll.bench.overlap import TURN_TOKENS, OverlapResult, run_overlap
from fnroll.bench.ragged import RaggedResult, make_ragged, run_ragged

WORKLOADS = ("W2", "gap", "tools")
"""W2: answers of unequal length on real weights. gap: recorded log-probs against a training forward.
tools: tool latency against decoding."""

Row = dict[str, Any]


def machine() -> Row:
    """Return what the figures were measured on."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def _ragged_rows(result: RaggedResult, dtype: str, rows: int) -> list[Row]:
    peer = result.samples["generate"]
    found = []
    for engine, sample in result.samples.items():
        ratios = paired_ratios(sample, peer)
        found.append(
            {
                "workload": "W2",
                "engine": engine,
                "dtype": dtype,
                "rows": rows,
                "tokens_per_s": sample.tokens_per_s,
                "spread": sample.spread,
                "times_generate": statistics.median(ratios),
                "times_generate_range": [ratios[0], ratios[-1]],
                "same_answers": result.same_answers,
            }
        )
    return found


def measure_ragged(model: Any, tokenizer: Any, questions: list[str], rounds: int, say: Callable[[str], None],
                   **options: int) -> list[Row]:  # fmt: skip
    """Measure W2; one row for each engine."""
    work = make_ragged(tokenizer, questions, **options)
    result = run_ragged(model, work, rounds, say)
    return _ragged_rows(result, str(model.dtype).removeprefix("torch."), work.rows)


def measure_gap_row(model: Any, tokenizer: Any, questions: list[str]) -> list[Row]:
    """Measure the distance of recorded log-probs from a training forward, in nats."""
    gap = measure_gap(model, tokenizer, questions)
    return [
        {
            "workload": "gap",
            "engine": "fnroll-eager",
            "dtype": str(model.dtype).removeprefix("torch."),
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
        "tokens_per_turn": result.tokens_per_turn,
        "returning": result.returning,
        "latency_s": result.latency_s,
        "wall_s": statistics.median(result.walls),
        "decode_bound_s": statistics.median(result.decodes),
        "tool_bound_s": result.tool_s,
        "times_bound": result.ratio,
        "times_schedule_bound": result.schedule_ratio,
    }


def print_rows(console: Console, rows: list[Row]) -> None:
    """Print one table for each workload."""
    for workload in dict.fromkeys(row["workload"] for row in rows):
        some = [row for row in rows if row["workload"] == workload]
        table = Table(box=box.SIMPLE_HEAD, title=workload, title_justify="left")
        for name in list(some[0])[1:]:
            table.add_column(name.replace("_", "\n"), justify="right", no_wrap=True)
        for row in some:
            table.add_row(*[_cell(value) for value in list(row.values())[1:]])
        console.print(table)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return " - ".join(map(_cell, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def save_rows(path: str, rows: list[Row]) -> None:
    """Write the rows and the machine as JSON."""
    Path(path).write_text(json.dumps([{**row, "machine": machine()} for row in rows], indent=1) + "\n")
