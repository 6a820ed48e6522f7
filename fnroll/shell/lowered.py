"""The steps of one model, lowered for one backend, with their buffers donated."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

from torch import Tensor

from fnroll.core import steps
from fnroll.core.lower import Step, compiled, donate
from fnroll.core.types import RolloutState
from fnroll.models.base import Model

_DONATED = ("records", "rows", "queue", "cache")
_SMALLEST_WINDOW = 64


class LoweredSteps:
    """Callable steps for a driver; a compiled decode step exists once for each window and way of sampling."""

    def __init__(
        self, model: Model, *, backend: str, max_length: int, static: bool, multi_turn: bool,
        front: bool = True,
    ) -> None:  # fmt: skip
        self.model, self.backend, self.max_length = model, backend, max_length
        self.multi_turn = multi_turn
        self.enqueue: Step = donate(steps.enqueue, _DONATED)
        self.admit: Step = donate(partial(steps.admit, static=static), _DONATED)
        self.append_tool: Step = donate(partial(steps.append_tool, front=front), _DONATED)
        self._prefill: Step = donate(partial(steps.prefill, model=model.fn), _DONATED)
        self._decode: dict[Hashable, Step] = {}

    def window(self, length: int) -> int:
        """Return the attention window for records of up to `length` tokens."""
        if self.backend == "eager":
            step = _SMALLEST_WINDOW
            return min(-(-length // step) * step, self.max_length)
        # Powers of two keep the number of compiled graphs small and known.
        return min(max(_SMALLEST_WINDOW, 1 << (length - 1).bit_length()), self.max_length)

    def prefill(self, state: RolloutState, rows: Tensor, *, width: int, length: int) -> RolloutState:
        """Feed up to `width` tokens of each row whose record is at most `length` long."""
        new: RolloutState = self._prefill(
            self.model.params, state, rows, width=width, window=self.window(length)
        )
        return new

    def decode(self, state: RolloutState, length: int) -> tuple[RolloutState, Tensor]:
        """Run a decode step over records of at most `length` tokens."""
        window, sampling, support = self.window(length), state.sampling, state.records.support
        # What the graph depends on; one compiled callable for all would run into its recompile limit.
        key = (
            window,
            sampling.max_top_k,
            sampling.use_top_p,
            sampling.use_penalty,
            sampling.use_noise,
            None if support is None else support.shape[-1],
        )
        if key not in self._decode:
            self._decode[key] = self._lower_decode(window)
        result: Any = self._decode[key](self.model.params, state)
        return result[0], result[1]

    def _lower_decode(self, window: int) -> Step:
        step = partial(steps.decode_step, model=self.model.fn, window=window, multi_turn=self.multi_turn)
        donated = donate(step, _DONATED)
        return compiled(donated) if self.backend == "compiled" else donated
