"""Compile all steps of a configuration ahead, so that no rollout waits for one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from fnroll.compile.steps import LoweredSteps, Shape
from fnroll.core.types import RolloutState

_NO_MEMORY = ("out of memory", "can't allocate memory", "CUDA_ERROR_OUT_OF_MEMORY")


class WarmUpError(RuntimeError):
    """The steps of a configuration do not fit into the memory of the device."""


@dataclass(frozen=True)
class WarmUp:
    """What a warm-up did."""

    graphs: int
    """Steps that were compiled; those that already were are not counted."""
    seconds: float
    """Wall time; from the compile cache on disk, a small part of the first time."""

    def __str__(self) -> str:
        return f"{self.graphs} graphs in {self.seconds:.1f} s"


def _is_memory(error: BaseException) -> bool:
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(part in text for part in _NO_MEMORY)


def _say(shapes: list[Shape], place: int, error: BaseException) -> str:
    first = str(error).strip().splitlines() or [type(error).__name__]
    done = ", ".join(map(str, shapes[:place])) or "none"
    return (
        f"out of memory while warming up graph {place + 1} of {len(shapes)} ({shapes[place]}; done: {done}); "
        f"lower RolloutConfig.rows or RolloutConfig.max_length, or do not warm up: only what a rollout uses "
        f"is compiled then. The cause: {first[0]}"
    )


def warm_up(
    steps: LoweredSteps, state: RolloutState, report: Callable[[int, str], None]
) -> tuple[RolloutState, WarmUp]:
    """Run every shape of a configuration once, over the free rows of `state`.

    Args:
      steps: of the configuration.
      state: with no record in it; it is consumed.
      report: told before each shape how many are done, and which one begins.

    Returns:
      The state, and what was done.

    Raises:
      WarmUpError: if the memory is too small, naming the shape and what to lower.
    """
    shapes, before, start = steps.shapes(), steps.num_graphs, time.perf_counter()
    with torch.no_grad():
        for place, shape in enumerate(shapes):
            report(place, str(shape))
            try:
                for _ in range(steps.runs_to_warm_up):
                    state = steps.try_shape(state, shape)
            except (RuntimeError, MemoryError) as error:
                if _is_memory(error):
                    raise WarmUpError(_say(shapes, place, error)) from error
                raise
    return state, WarmUp(steps.num_graphs - before, time.perf_counter() - start)
