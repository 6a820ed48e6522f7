"""A result row: one engine on one workload."""

from __future__ import annotations

import statistics
from typing import Any

from fnroll.bench.measure import Sample, paired_ratios
from fnroll.bench.meter import Compile
from fnroll.bench.workload import Ids, Workload, least_fed

Row = dict[str, Any]

KEYS = (
    "workload", "variant", "engine", "dtype", "rows", "tokens_per_s", "spread", "rounds",
    "fastest_peer", "times_peer", "times_peer_range", "compile_cold_s", "compile_warm_s", "graphs",
    "recompiles", "peak_memory", "share_of_bound", "same_records", "oracle", "fed_per_sampled",
    "least_fed_per_sampled", "padding_share", "step_ms", "host_share", "error",
)  # fmt: skip
"""Of every row; None where an engine has no such figure."""

BOUND = "bound"


def make_row(work: Workload, engine: str, dtype: str, **values: Any) -> Row:
    """Return a row with all keys; those that are not given are None."""
    known = {"workload": work.name, "variant": work.variant, "engine": engine, "dtype": dtype}
    row = {**dict.fromkeys(KEYS), **known, "rows": work.rows, **values}
    assert tuple(row) == KEYS
    return row


def share_of_bound(sample: Sample, bound: Sample, rows: int) -> float:
    """Return how close to the bound an engine decodes, median of the rounds: 1 is as fast as the bound.

    The bound of a round is its time for one decode step, times the steps that full rows would take for what
    was sampled. Where prefill cannot be told from decoding, the whole round counts as decoding.
    """
    shares = []
    for ours, least in zip(sample.rounds, bound.rounds, strict=False):
        step = least.seconds / least.steps
        split = ours.decode_s is not None
        seconds, tokens = (ours.decode_s, ours.decode_tokens) if split else (ours.seconds, ours.tokens)
        shares.append(step * tokens / rows / seconds if seconds else 0.0)
    return statistics.median(shares)


def share_of_same(records: tuple[Ids, ...], oracle: tuple[Ids, ...]) -> float:
    """Return the share of records that are token for token those of the oracle."""
    pairs = zip(records, oracle, strict=True)
    return sum(ours == theirs for ours, theirs in pairs) / len(oracle)


def measured(work: Workload, sample: Sample) -> Row:
    """Return what a sample of a workload says by itself."""
    last = sample.rounds[-1]
    columns = (last.fed or 0) + last.padded
    return {
        "tokens_per_s": sample.tokens_per_s,
        "spread": sample.spread,
        "rounds": len(sample.rounds),
        "recompiles": sample.recompiles,
        "peak_memory": sample.peak_memory,
        "fed_per_sampled": None if last.fed is None else last.fed / last.tokens,
        "least_fed_per_sampled": least_fed(work, last.records) / last.tokens if last.records else None,
        "padding_share": None if last.fed is None else last.padded / columns,
        "step_ms": 1e3 * statistics.median(r.seconds / r.steps for r in sample.rounds)
        if last.steps
        else None,
        "host_share": _median_host_share(sample),
        "error": sample.error,
    }


def _median_host_share(sample: Sample) -> float | None:
    shares = [outcome.host_share for outcome in sample.rounds if outcome.host_share is not None]
    return statistics.median(shares) if shares else None


def compared(sample: Sample, name: str, peer: Sample | None) -> Row:
    """Return the comparison with a peer, paired by round."""
    if peer is None or not peer.rounds:
        return {}
    ratios = paired_ratios(sample, peer)
    return {
        "fastest_peer": name,
        "times_peer": statistics.median(ratios),
        "times_peer_range": [ratios[0], ratios[-1]],
    }


def compiling(cold: Compile | None, warm: Compile | None) -> Row:
    """Return what compiling took, in seconds; nothing of an engine that compiles nothing."""
    found: Row = {"graphs": 0 if cold is None else cold.graphs}
    if cold is not None and cold.graphs:
        found |= {"compile_cold_s": cold.seconds}
    if warm is not None and warm.graphs:
        found |= {"compile_warm_s": warm.seconds}
    return found
