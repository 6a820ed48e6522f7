"""A step as a CUDA graph: captured once, replayed on the same memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from fnroll.compile.lower import Donated, Step, name_of
from fnroll.core.tree import leaf_names, tree_flatten, tree_leaves, tree_unflatten

_LOG = logging.getLogger(__name__)


class Graph(Protocol):
    """Recorded work that can be run again on the same memory."""

    def replay(self) -> None:
        """Run it."""

    def reset(self) -> None:
        """Give its memory back."""


Recorder = Callable[[Step], tuple[Any, Graph]]
"""Runs a function of no arguments while its kernels are recorded; returns its result and the graph."""


def cuda_recorder() -> Recorder:
    """Return what records CUDA graphs, all of them in one private memory pool.

    They may share it because their outputs are copied out before another of them runs.
    """
    pool = torch.cuda.graph_pool_handle()

    def record(run: Step) -> tuple[Any, Graph]:
        graph: Any = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, pool=pool):
            result = run()
        return result, graph

    return record


class Captured:
    """A step that is replayed as a graph. Made by `captured`."""

    def __init__(
        self, step: Step, recorder: Recorder, weights: Callable[[], Iterable[tuple[str, Tensor]]] | None
    ) -> None:
        self.step, self.recorder, self.weights = step, recorder, weights or (lambda: ())
        self.__name__ = f"captured({getattr(step, '__name__', name_of(step))})"
        self.num_captures = 0
        self.release()

    def release(self) -> None:
        """Give the graph and its memory back; the next calls run and capture the step again."""
        if graph := getattr(self, "_graph", None):
            graph.reset()
        self._graph: Graph | None = None
        self._inputs: list[Any] = []
        self._kept: set[int] = set()
        self._result: Any = None
        self._seen: tuple[Any, ...] | None = None

    def _describe(self, args: tuple[Any, ...], leaves: list[Any], spec: Any) -> tuple[Any, ...]:
        shapes = [
            (tuple(leaf.shape), leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else leaf
            for leaf in leaves
        ]
        own = zip(leaf_names(args[:1]), tree_leaves(args[:1]), strict=True) if self._has_params(args) else ()
        addresses = {
            name: leaf.data_ptr() for name, leaf in (*own, *self.weights()) if isinstance(leaf, Tensor)
        }
        return spec, shapes, addresses

    def _has_params(self, args: tuple[Any, ...]) -> bool:
        return len(args) > 1 and not (isinstance(self.step, Donated) and self.step.find(args) is args[0])

    def _changed(self, seen: tuple[Any, ...]) -> str | None:
        """Return why the graph no longer fits."""
        if self._seen is None:
            return None
        for name, address in seen[2].items():
            if self._seen[2].get(name) != address:
                return f"parameter {name} was replaced"
        if self._seen[0] != seen[0] or len(self._seen[1]) != len(seen[1]):
            return "the structure of its arguments changed"
        for place, (old, new) in enumerate(zip(self._seen[1], seen[1], strict=True)):
            if old != new:
                return f"input {place} changed from {old} to {new}"
        return None

    def __call__(self, *args: Any) -> Any:
        """Run the step: as it is the first time, by its graph from then on; what it donates is consumed."""
        leaves, spec = tree_flatten(args)
        seen = self._describe(args, leaves, spec)
        if reason := self._changed(seen):
            _LOG.warning("%s: %s; the step is captured again", self.__name__, reason)
            self.release()
        if self._seen is None:  # compiles, and lets libraries set themselves up, which no capture may
            self._seen = seen
            return self.step(*args)
        state = self.step.find(args) if isinstance(self.step, Donated) else None
        if self._graph is None:
            self._capture(args, leaves, spec)
        for static, leaf in zip(self._inputs, leaves, strict=True):
            if isinstance(leaf, Tensor) and leaf.data_ptr() != static.data_ptr():
                static.copy_(leaf)
        assert self._graph is not None
        self._graph.replay()
        return self._hand_out(state, leaves)

    def _capture(self, args: tuple[Any, ...], leaves: list[Any], spec: Any) -> None:
        donated = isinstance(self.step, Donated)
        kept = self.step.leaves(self.step.find(args)) if isinstance(self.step, Donated) else []
        self._kept = {id(leaf) for leaf in kept}
        params = {id(leaf) for leaf in tree_leaves(args[:1])} if self._has_params(args) else set()
        # Donated buffers and weights stay where they are; whatever else comes in is copied into the graph's.
        self._inputs = [
            leaf.clone() if isinstance(leaf, Tensor) and id(leaf) not in self._kept | params else leaf
            for leaf in leaves
        ]
        run = self.step.run if isinstance(self.step, Donated) else self.step
        self._result, self._graph = self.recorder(lambda: run(*tree_unflatten(self._inputs, spec)))
        self.num_captures += 1
        _LOG.info("%s: captured%s", self.__name__, ", its buffers in place" if donated else "")

    def _hand_out(self, state: Any, leaves: list[Any]) -> Any:
        """Return the result of the replay: outputs copied out, inputs that passed through as they came."""
        given = {id(static): leaf for static, leaf in zip(self._inputs, leaves, strict=True)}
        results, spec = tree_flatten(self._result)
        handed = [
            leaf
            if not isinstance(leaf, Tensor) or id(leaf) in self._kept
            else given[id(leaf)]
            if id(leaf) in given
            else leaf.clone()
            for leaf in results
        ]
        result = tree_unflatten(handed, spec)
        if isinstance(self.step, Donated):
            self.step.consume(state, self.step.find(result))
        return result


def captured(
    step: Step,
    *,
    weights: Callable[[], Iterable[tuple[str, Tensor]]] | None = None,
    recorder: Recorder | None = None,
) -> Captured:
    """Replay a step as a CUDA graph.

    The first call runs the step as it is, the second captures it. Donated buffers and weights are used where
    they are, so in-place updates need nothing; other inputs are copied in, and outputs out. If a weight was
    replaced or a shape changed, the reason is logged and the step captured again.

    Args:
      step: donated, or compiled and donated; `params` first.
      weights: names and tensors of weights that the step reads without being given them.
      recorder: shared by the steps of one rollout; the default is a `cuda_recorder()` of its own.
    """
    return Captured(step, cuda_recorder() if recorder is None else recorder, weights)
