"""The steps of one model, lowered for one backend, with their buffers donated."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fnroll.core import steps
from fnroll.core.lower import Step, compiled, donate
from fnroll.core.types import RolloutState
from fnroll.models.base import Model
from fnroll.shell.buckets import CPU_COST, CUDA_COST, Buckets, DecodeShape, PrefillShape

_DONATED = ("records", "rows", "queue", "cache")
# In eager mode shapes cost nothing: windows end at the next multiple of this, and prefills are exact.
_EAGER_WINDOW = 64
_EAGER_WIDTH = 512


class LoweredSteps:
    """Callable steps for a driver; a compiled one exists once for each shape and way of sampling."""

    def __init__(
        self, model: Model, *, backend: str, max_length: int, num_rows: int, static: bool, multi_turn: bool,
        front: bool = True,
    ) -> None:  # fmt: skip
        self.model, self.backend, self.max_length = model, backend, max_length
        self.multi_turn = multi_turn
        cost = CUDA_COST if model.device.type == "cuda" else CPU_COST
        self.buckets = Buckets(num_rows, max_length, cost)
        self.enqueue: Step = donate(steps.enqueue, _DONATED)
        self.admit: Step = donate(partial(steps.admit, static=static), _DONATED)
        self.append_tool: Step = donate(partial(steps.append_tool, front=front), _DONATED)
        self.finish: Step = donate(steps.finish, _DONATED)
        self._prefill: Step = donate(partial(steps.prefill, model=model.fn), _DONATED)
        self._lowered: dict[Hashable, Step] = {}

    @property
    def is_eager(self) -> bool:
        """Whether steps run as they are, in any shape."""
        return self.backend == "eager"

    @property
    def num_graphs(self) -> int:
        """Compiled steps so far; each is compiled once."""
        return 0 if self.is_eager else len(self._lowered)

    def _eager_window(self, length: int) -> int:
        return min(-(-length // _EAGER_WINDOW) * _EAGER_WINDOW, self.max_length)

    def prefill_width(self, count: int, tokens: int) -> int:
        """Return how many tokens the next prefill of `count` rows takes, of up to `tokens` that each has."""
        return min(tokens, _EAGER_WIDTH) if self.is_eager else self.buckets.width(count, tokens)

    def prefill(
        self, state: RolloutState, rows: Sequence[int], *, width: int, length: int
    ) -> tuple[RolloutState, list[PrefillShape]]:
        """Feed up to `width` tokens, from `prefill_width`, of rows whose records are then `length` long.

        Returns:
          The state, and the shapes of the forwards that it took.
        """
        if self.is_eager:
            shape = PrefillShape(len(rows), width, self._eager_window(length))
            every = sorted(rows) == list(range(state.num_rows))
            index = None if every else torch.tensor(rows, device=self.model.device)
            state = self._prefill(self.model.params, state, index, width=width, window=shape.window)
            return state, [shape]
        shapes = []
        for part, height in self.buckets.split(rows, width):
            shape = PrefillShape(height, width, self.buckets.prefill_window(max(length, width)))
            filled = self._fill_up(part, height, width)
            state = self._lower_prefill(shape)(self.model.params, state, *filled)
            shapes.append(shape)
        return state, shapes

    def _fill_up(self, rows: Sequence[int], height: int, width: int) -> tuple[Tensor | None, Tensor]:
        """Return `height` different rows, None for all, and how many tokens each may feed."""
        fed, every = set(rows), range(self.buckets.num_rows)
        if height == len(every):
            counts = [width if row in fed else 0 for row in every]
            return None, torch.tensor(counts, device=self.model.device)
        spare = [row for row in every if row not in fed][: height - len(rows)]
        counts = [width] * len(rows) + [0] * len(spare)
        index = torch.tensor([*rows, *spare], device=self.model.device)
        return index, torch.tensor(counts, device=self.model.device)

    def _lower_prefill(self, shape: PrefillShape) -> Step:
        if shape not in self._lowered:
            step = partial(steps.prefill, model=self.model.fn, width=shape.width, window=shape.window)
            self._lowered[shape] = self._lower(step)
        return self._lowered[shape]

    def decode(self, state: RolloutState, length: int) -> tuple[RolloutState, Tensor]:
        """Run a decode step over records of at most `length` tokens."""
        window = self._eager_window(length) if self.is_eager else self.buckets.window(length)
        sampling, support = state.sampling, state.records.support
        # What the graph depends on; one compiled callable for all would run into its recompile limit.
        key = (
            DecodeShape(window),
            sampling.max_top_k,
            sampling.use_top_p,
            sampling.use_penalty,
            sampling.use_noise,
            None if support is None else support.shape[-1],
        )
        if key not in self._lowered:
            step = partial(steps.decode_step, model=self.model.fn, window=window, multi_turn=self.multi_turn)
            self._lowered[key] = self._lower(step)
        result: Any = self._lowered[key](self.model.params, state)
        return result[0], result[1]

    def _lower(self, step: Step) -> Step:
        donated = donate(step, _DONATED)
        return donated if self.is_eager else compiled(donated)
