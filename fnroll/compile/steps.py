"""The steps of one model, lowered for one backend, with their buffers donated."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fnroll.compile.graph import Captured, Recorder, captured, cuda_recorder
from fnroll.compile.lower import Donated, Settled, Step, compiled, donate
from fnroll.compile.shapes import Buckets, DecodeShape, PrefillShape
from fnroll.core import pool, steps
from fnroll.core.tree import replace
from fnroll.core.types import RolloutState
from fnroll.models.base import Model
from fnroll.paths import cache_dir

Shape = DecodeShape | PrefillShape
DONATED = ("records", "rows", "queue", "cache")
"""Parts of a state that a step writes into."""
# In eager mode shapes cost nothing: windows end at the next multiple of this, and prefills are exact.
_EAGER_WINDOW = 64
_EAGER_WIDTH = 512
_MIN_LINES = 256
EAGER_PREFILL = frozenset({("compiled", "cpu")})
"""Backends and devices on which a compiled prefill does not pay: on a CPU its matrix products take most of
the time, and the columns that fill a shape up cost more than fusion saves."""


class LoweredSteps:
    """Callable steps for a driver; a compiled one exists once for each shape and way of sampling."""

    def __init__(
        self, model: Model, *, backend: str, max_length: int, num_rows: int, static: bool, multi_turn: bool,
        front: bool = True,
    ) -> None:  # fmt: skip
        self.model, self.backend, self.max_length = model, backend, max_length
        self.multi_turn = multi_turn
        if backend != "eager":
            # torch's own default is a temporary folder, which many systems empty.
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_dir() / "inductor"))
        self._prefills_eagerly = self.is_eager or (backend, model.device.type) in EAGER_PREFILL
        self.buckets = Buckets(num_rows, max_length)
        self.enqueue: Step = donate(steps.enqueue, DONATED)
        self.admit: Step = partial(steps.admit, static=static)
        if not self.is_eager:  # nobody needs its few small buffers to stay in place in eager mode
            self.admit = donate(self.admit, DONATED)
        self.append_tool: Step = donate(partial(steps.append_tool, front=front), DONATED)
        self.finish: Step = donate(steps.finish, DONATED)
        self._eager_prefill: Step = donate(partial(steps.prefill, model=model.fn), DONATED)
        self._park: Step = donate(pool.park, ("pool",))
        self._unpark: Step = donate(pool.unpark, ("cache", "rows", "pool"))
        self._move: Step = donate(pool.move, ("cache", "rows"))
        self._share: Step = donate(pool.share, ("cache", "rows"))
        self.release: Step = donate(pool.release, ("pool",))
        self._lowered: dict[tuple[Hashable, ...], Step] = {}
        self._weights: Sequence[tuple[str, Tensor]] = ()
        self._recorder: Recorder | None = None

    @property
    def is_eager(self) -> bool:
        """Whether steps run as they are, in any shape."""
        return self.backend == "eager"

    def num_lines(self, flights: int) -> int:
        """Return N for a number of records; compiled steps always take the most, lest each N be a graph."""
        most = max(_MIN_LINES, 8 * self.buckets.num_rows)
        return min(flights, most) if self.is_eager else most

    def shapes(self) -> list[Shape]:
        """Return every shape that a compiled step of this configuration can have."""
        if self.is_eager:
            return []
        return [*self.buckets.decodes(), *(() if self._prefills_eagerly else self.buckets.prefills())]

    def try_shape(self, state: RolloutState, shape: Shape) -> RolloutState:
        """Run a step of that shape over free rows, which changes nothing; this compiles it."""
        if isinstance(shape, DecodeShape):
            return self._decode(shape, state)
        return self._prefill(shape, state, *self._fill_up([], shape.rows, 0))

    @property
    def runs_to_warm_up(self) -> int:
        """How often a shape must run until nothing is left to prepare: the second time captures."""
        return 2 if self.backend == "captured" else 1

    @property
    def num_graphs(self) -> int:
        """Compiled steps so far; each is compiled once."""
        return 0 if self.is_eager else len(self._lowered)

    def _eager_window(self, length: int) -> int:
        return min(-(-length // _EAGER_WINDOW) * _EAGER_WINDOW, self.max_length)

    def prefill_width(self, count: int, tokens: int) -> int:
        """Return how many tokens the next prefill of `count` rows takes, of up to `tokens` that each has."""
        return min(tokens, _EAGER_WIDTH) if self._prefills_eagerly else self.buckets.width(count, tokens)

    def prefill(
        self, state: RolloutState, rows: Sequence[int], *, width: int, length: int
    ) -> tuple[RolloutState, list[PrefillShape]]:
        """Feed up to `width` tokens, from `prefill_width`, of rows whose records are then `length` long.

        Returns:
          The state, and the shapes of the forwards that it took.
        """
        if self._prefills_eagerly:
            shape = PrefillShape(len(rows), width, self._eager_window(length))
            every = sorted(rows) == list(range(state.num_rows))
            index = None if every else torch.tensor(rows, device=self.model.device)
            state = self._eager_prefill(self.model.params, state, index, width=width, window=shape.window)
            return state, [shape]
        shapes = []
        for part, height in self.buckets.split(rows, width):
            shape = PrefillShape(height, width, self.buckets.prefill_window(max(length, width)))
            filled = self._fill_up(part, height, width)
            state = self._prefill(shape, state, *filled)
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

    def _prefill(
        self, shape: PrefillShape, state: RolloutState, rows: Tensor | None, count: Tensor
    ) -> RolloutState:
        step = partial(steps.prefill, model=self.model.fn, width=shape.width, window=shape.window)
        new: RolloutState = self._run((shape, _support_size(state)), step, state, rows, count)
        return replace(new, pool=state.pool)

    def park(
        self, state: RolloutState, rows: Tensor, slots: Tensor, records: Tensor, *, length: int
    ) -> RolloutState:
        """Copy rows into pool slots; at most `length` tokens each."""
        window = self._eager_window(length)
        new: RolloutState = self._park(state, rows, slots, records, window=window)
        return new

    def unpark(self, state: RolloutState, slots: Tensor, rows: Tensor, *, length: int) -> RolloutState:
        """Move pool slots of at most `length` tokens into rows."""
        new: RolloutState = self._unpark(state, slots, rows, window=self._eager_window(length))
        return new

    def share(
        self, state: RolloutState, sources: Tensor, rows: Tensor, lengths: Tensor, *, length: int,
        pooled: bool,
    ) -> RolloutState:  # fmt: skip
        """Copy prefixes of at most `length` tokens into rows, from rows or from pool slots."""
        window = self._eager_window(length)
        new: RolloutState = self._share(state, sources, rows, lengths, window=window, pooled=pooled)
        return new

    def move(self, state: RolloutState, sources: Tensor, rows: Tensor, *, length: int) -> RolloutState:
        """Move records of at most `length` tokens to idle rows."""
        new: RolloutState = self._move(state, sources, rows, window=self._eager_window(length))
        return new

    def decode_shape(self, state: RolloutState, length: int, count: int) -> DecodeShape:
        """Return the shape of a step over records of at most `length` tokens in the first `count` rows."""
        if self.is_eager:
            rows = min(1 << (count - 1).bit_length(), self.buckets.num_rows)
            return DecodeShape(rows, self._eager_window(length))
        shape = self.buckets.decode(count, length)
        # The end of a rollout is not worth a minute of compiling: `warm_up` makes the steps of fewer rows.
        if shape.rows == self.buckets.num_rows or self._decode_key(shape, state) in self._lowered:
            return shape
        return self.buckets.decode(self.buckets.num_rows, length)

    def decode(self, state: RolloutState, length: int, count: int) -> tuple[RolloutState, DecodeShape]:
        """Run a decode step over records of at most `length` tokens in the first `count` rows.

        Returns:
          The state, and the shape of the forward that it took.
        """
        shape = self.decode_shape(state, length, count)
        return self._decode(shape, state), shape

    @staticmethod
    def _decode_key(shape: DecodeShape, state: RolloutState) -> tuple[Hashable, ...]:
        way = state.sampling
        return (shape, _support_size(state), way.max_top_k, way.use_top_p, way.use_penalty, way.use_noise)

    def _decode(self, shape: DecodeShape, state: RolloutState) -> RolloutState:
        step = partial(
            steps.decode_step,
            model=self.model.fn,
            window=shape.window,
            height=shape.rows,
            multi_turn=self.multi_turn,
        )
        new: RolloutState = self._run(self._decode_key(shape, state), step, state)[0]
        return replace(new, pool=state.pool)

    def _run(self, key: tuple[Hashable, ...], step: Step, state: RolloutState, *more: Any) -> Any:
        """Run the lowered step of a key on what such steps take of a state: all but the pool.

        A graph that was given the pool would keep a copy of it and copy it in each step.
        """
        return self._lower(key, step)(self.model.params, replace(state, pool=None), *more)

    def _lower(self, key: tuple[Hashable, ...], step: Step) -> Step:
        """Return the step of a key, which is all that its graph depends on.

        One compiled callable for all shapes would run into its recompile limit.
        """
        if key not in self._lowered:
            donated = donate(step, DONATED)
            self._lowered[key] = self._run_by_backend(donated)
        return self._lowered[key]

    def _run_by_backend(self, donated: Donated) -> Step:
        if self.is_eager:
            return donated
        step = compiled(donated)
        if self.backend == "compiled":
            return Settled(step)
        self._recorder = self._recorder or cuda_recorder()
        return captured(step, weights=lambda: self._weights, recorder=self._recorder)

    def refresh(self) -> None:
        """Take up weights that were replaced; steps that ran with others check or capture theirs again."""
        replaced = self.model.refresh()
        for step in self._lowered.values() if replaced else ():
            if isinstance(step, Settled):
                step.seen.clear()
        if self.backend == "captured":
            self._weights = self.model.named_weights()

    def shutdown(self) -> None:
        """Give the memory of captured graphs back."""
        for step in self._lowered.values():
            if isinstance(step, Captured):
                step.release()
        self._recorder = None


def _support_size(state: RolloutState) -> int:
    support = state.records.support
    return 0 if support is None else support.shape[-1]
