"""Runs one workload on all its engines and makes rows of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch._inductor.utils import fresh_cache

from fnroll.bench.bound import Bound
from fnroll.bench.engine import Engine, EngineError, EngineRun, FnrollEngine, Subject
from fnroll.bench.hybrid import HybridEngine
from fnroll.bench.measure import Sample, describe, interleave
from fnroll.bench.meter import Compile, watch_compiler
from fnroll.bench.paged import GenerateBatchEngine
from fnroll.bench.peer import GenerateEngine
from fnroll.bench.row import (
    BOUND,
    Row,
    compared,
    compiling,
    make_row,
    measured,
    share_of_bound,
    share_of_same,
)
from fnroll.bench.workload import Ids, Workload

Maker = Callable[[Subject, Workload], Engine]

PEERS: Mapping[str, Maker] = {
    "generate": GenerateEngine,
    "generate-static": partial(GenerateEngine, cache="static"),
    "generate-batch": GenerateBatchEngine,
    "deepspeed": HybridEngine,
    "deepspeed-continuous": partial(HybridEngine, is_continuous=True),
}
"""Engines that are not fnroll's."""

ENGINES: Mapping[str, Maker] = {
    "fnroll-eager": FnrollEngine,
    "fnroll-compiled": partial(FnrollEngine, backend="compiled"),
    "fnroll-captured": partial(FnrollEngine, backend="captured"),
    **PEERS,
}
"""All engines by name."""

_ORACLE = "generate"
_SERIAL = "fnroll-serial"


@dataclass
class _Ready:
    """An engine that has done the work once, or why it cannot."""

    engine: Engine | None = None
    first: EngineRun | None = None
    cold: Compile | None = None
    warm: Compile | None = None
    error: str | None = None


def _prepare(make: Maker, subject: Subject, work: Workload, is_warm: bool) -> tuple[_Ready, Compile]:
    """Make an engine and let it do the work once; compile all it can need, or only what the work needs."""
    ready = _Ready()
    with watch_compiler() as compile_:
        try:
            ready.engine = make(subject, work)
            if is_warm and isinstance(ready.engine, FnrollEngine):
                ready.engine.warm_up()
            ready.first = ready.engine()
        except EngineError as error:
            ready.error = str(error)
        except Exception as error:  # whatever a peer raises is a result of the benchmark
            ready.error = describe(error)
    return ready, compile_


def _prepare_all(
    subject: Subject, work: Workload, names: Sequence[str], say: Callable[[str], None], is_warm: bool
) -> dict[str, _Ready]:
    """Prepare all engines; those that compile are made twice, to see what the compile cache is worth."""
    found = {}
    for name in names:
        found[name], cold = _prepare(ENGINES[name], subject, work, is_warm)
        found[name].cold = cold
        say(f"{name}: {found[name].error or f'ready after {cold.wall_s:.1f} s'}")
    compiled = [name for name in names if found[name].error is None and _cold(found[name]).graphs]
    if not is_warm or not compiled:
        return found
    for name in compiled:
        _close(found[name])
    torch._dynamo.reset()
    for name in compiled:
        again, warm = _prepare(ENGINES[name], subject, work, is_warm)
        found[name] = replace(again, cold=found[name].cold, warm=warm)
        say(f"{name}: {again.error or f'ready again after {warm.wall_s:.1f} s'}")
    return found


def _cold(ready: _Ready) -> Compile:
    return ready.cold or Compile()


def _close(ready: _Ready) -> None:
    if ready.engine is not None:
        ready.engine.close()
        ready.engine = None


def _find_oracle(
    subject: Subject, work: Workload, ready: Mapping[str, _Ready]
) -> tuple[str, tuple[Ids, ...]]:
    """Return the records that all engines should give: those of `generate()`, or of another schedule."""
    peer = ready.get(_ORACLE)
    if peer is not None and peer.first is not None:
        return _ORACLE, peer.first.records
    serial = FnrollEngine(subject, replace(work, rows=max(1, work.rows // 4)), batching="static")
    try:
        return _SERIAL, serial().records
    finally:
        serial.close()


def run_workload(
    subject: Subject,
    work: Workload,
    names: Sequence[str],
    rounds: int,
    say: Callable[[str], None],
    *,
    is_warm: bool = True,
) -> tuple[list[Row], KeyboardInterrupt | None]:
    """Measure a workload; return a row for each engine and one for the bound.

    Args:
      subject: the model.
      work: the workload.
      names: of `ENGINES`.
      rounds: counted rounds, after one that warms up.
      say: told of each step as it ends.
      is_warm: compile all graphs ahead, and a second time from the compile cache that the first one filled;
        else only the graphs that the work needs, once.
    """
    with ExitStack() as stack:
        stack.enter_context(fresh_cache())
        ready = _prepare_all(subject, work, names, say, is_warm)
        for one in ready.values():
            stack.callback(_close, one)
        runs = {name: one.engine for name, one in ready.items() if one.engine and one.error is None}
        oracle = _find_oracle(subject, work, ready) if runs else ("", ())
        bound = _make_bound(subject, work)
        if bound is not None:
            runs[BOUND] = bound
        samples, interrupt = interleave(runs, rounds, say)
    for name, one in ready.items():
        samples.setdefault(name, Sample(error=one.error))
    return _make_rows(subject, work, ready, samples, oracle), interrupt


def _make_bound(subject: Subject, work: Workload) -> Bound | None:
    return None if subject.module is None else Bound(subject, work)


def _make_rows(
    subject: Subject,
    work: Workload,
    ready: Mapping[str, _Ready],
    samples: Mapping[str, Sample],
    oracle: tuple[str, tuple[Ids, ...]],
) -> list[Row]:
    peers = [name for name in samples if name in PEERS and samples[name].rounds]
    peer = max(peers, key=lambda name: samples[name].tokens_per_s, default="")
    rows = []
    for name in (*ready, *({BOUND} & samples.keys())):
        sample, values = samples[name], dict[str, Any]()
        if name in ready:
            values |= compiling(ready[name].cold, ready[name].warm)
        if sample.rounds:
            values |= measured(work, sample) | compared(sample, peer, samples.get(peer))
            values |= _correctness(sample, oracle)
            if BOUND in samples and samples[BOUND].rounds:
                values["share_of_bound"] = share_of_bound(sample, samples[BOUND], work.rows)
        rows.append(make_row(work, name, subject.dtype, **{**values, "error": sample.error}))
    return rows


def _correctness(sample: Sample, oracle: tuple[str, tuple[Ids, ...]]) -> Row:
    records = sample.rounds[-1].records
    if not records:
        return {}
    return {"same_records": share_of_same(records, oracle[1]), "oracle": oracle[0]}
