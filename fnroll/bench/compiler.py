"""`fnroll bench --compiler`: what each backend and mode makes of the pure steps alone."""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._inductor import list_mode_options, metrics
from torch._inductor.utils import fresh_cache, run_and_get_code

from fnroll.bench.cases import Case, Shape, make_cases
from fnroll.bench.measure import describe
from fnroll.bench.meter import watch_compiler
from fnroll.bench.row import Row
from fnroll.compile import lower
from fnroll.compile.lower import Step, compiled, donate
from fnroll.compile.steps import DONATED
from fnroll.core.tree import tree_leaves
from fnroll.models.base import Model

_ALLOCATION = re.compile(r"empty_strided\w*\(\(([\d, ]*)\)")


@dataclass(frozen=True)
class Way:
    """A way to run a step."""

    name: str
    backend: str | None
    """Of `torch.compile`; None for a step that is not compiled."""
    mode: str | None = None
    """Of Inductor."""


WAYS = (
    Way("eager", None),
    Way("aot_eager", "aot_eager"),
    Way("inductor", "inductor"),
    Way("reduce-overhead", "inductor", "reduce-overhead"),
    Way("max-autotune", "inductor", "max-autotune"),
    Way("captured", None),
)
"""All ways; `captured` is a CUDA graph."""

KEYS = (
    "step", "way", "backend", "mode", "model", "dtype", "rows", "max_length", "step_us", "spread",
    "compile_s", "graphs", "recompiles", "kernels", "full_size_allocations", "guards", "error",
)  # fmt: skip
"""Of every row; None where a way has no such figure."""


def count_full_size(code: str, least: int) -> int:
    """Return how many buffers of at least `least` elements a piece of generated code allocates."""
    sizes = (math.prod(map(int, re.findall(r"\d+", shape))) for shape in _ALLOCATION.findall(code))
    return sum(size >= least for size in sizes)


def full_size(case: Case) -> int:
    """Return the elements of the smallest buffer that grows with rows or lines times T."""
    records, cache = case.state.records, case.state.cache
    buffers = [records.tokens, *tree_leaves(cache)]
    return min(int(buffer.numel()) for buffer in buffers)


class _Guards:
    """Counts the guards of a compiled step, and keeps all of them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, guards: Sequence[Any]) -> list[bool]:
        self.count = len(guards)
        return [True] * len(guards)


def _captured() -> Callable[..., Step]:
    if not torch.cuda.is_available():
        raise RuntimeError("a captured step needs CUDA; use inductor on this machine")
    found: Callable[..., Step] | None = getattr(lower, "captured", None)
    if found is None:
        raise RuntimeError("this version of fnroll captures no steps")
    return found


def _lower(case: Case, way: Way, guards: _Guards) -> Step:
    donated = donate(case.step, DONATED)
    if way.name == "captured":
        return _captured()(donated)
    if way.backend is None:
        return donated
    options: dict[str, Any] = {"guard_filter_fn": guards}
    if way.mode is not None:
        options |= list_mode_options(way.mode)
    return compiled(donated, backend=way.backend, options=options)


def _first(step: Step, case: Case, way: Way) -> str:
    """Run a step once; return the code that was generated for it."""
    if way.backend != "inductor":
        step(*case.arguments())
        return ""
    _, code = run_and_get_code(step, *case.arguments())
    return "".join(code)


def _time(step: Step, case: Case, repeats: int) -> Row:
    """Time a step on copies of one state; making them is not counted."""
    seconds = []
    for _ in range(repeats):
        arguments = case.arguments()
        start = time.perf_counter()
        step(*arguments)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    low, middle, high = statistics.quantiles(seconds, n=4)
    return {"step_us": 1e6 * middle, "spread": (high - low) / middle}


def measure_step(case: Case, way: Way, repeats: int = 30) -> Row:
    """Return what a way makes of a step; a step that it cannot run has `error`."""
    torch._dynamo.reset()
    metrics.reset()
    guards = _Guards()
    with torch.no_grad():
        try:
            with watch_compiler() as first:
                step = _lower(case, way, guards)
                code = _first(step, case, way)
            with watch_compiler() as later:
                times = _time(step, case, repeats)
        except Exception as error:  # whatever a backend raises is a result of the benchmark
            return {"error": describe(error)}
    found = {**times, "graphs": first.graphs, "recompiles": later.graphs}
    if way.backend is not None:
        found |= {"compile_s": first.seconds, "guards": guards.count}
    if way.backend == "inductor":
        found["kernels"] = metrics.generated_kernel_count
        found["full_size_allocations"] = count_full_size(code, full_size(case))
    return found


def measure_compiler(
    model: Model, *, ways: Sequence[Way] = WAYS, shape: Shape | None = None, repeats: int = 30
) -> Iterator[Row]:
    """Yield a row for each step and way, as they come; each way begins with an empty compile cache.

    Args:
      model: runs the steps `extend` and `decode_step`.
      ways: to run each step.
      shape: of the state.
      repeats: timed runs of each.
    """
    shape = Shape() if shape is None else shape
    cases = make_cases(model, shape)
    known = {
        "model": model.name,
        "dtype": str(model.dtype).removeprefix("torch."),
        "rows": shape.rows,
        "max_length": shape.max_length,
    }
    for way in ways:
        # Modes share generated kernels, so one cache for all would make the second mode look fast to compile.
        with fresh_cache():
            if way.backend == "inductor":
                _compile_headers()
            for case in cases:
                what = {"step": case.name, "way": way.name, "backend": way.backend, "mode": way.mode}
                row = dict.fromkeys(KEYS) | known | what | measure_step(case, way, repeats)
                assert tuple(row) == KEYS
                yield row


def _increment(x: Tensor) -> Tensor:
    return x + 1


def _compile_headers() -> None:
    """Compile something small: finding the compiler and its headers is not a step's compile time."""
    torch._dynamo.reset()
    add = torch.compile(_increment, dynamic=False)
    with suppress(Exception):  # what does not work here will be an `error` of each step
        add(torch.zeros(64))
