"""What decoding cannot be faster than: the model's matrix products alone, and one read of the cache."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from fnroll.bench.engine import EngineError, EngineRun, Subject
from fnroll.bench.workload import Workload
from fnroll.models.causal_lm import causal_lm

_STEPS = 16
_TRIES = 5

Multiply = Callable[[Tensor, Tensor], Tensor]
"""Of inputs `[B, K]` and weights `[N, K]`."""
_ORDERS: tuple[Multiply, ...] = (
    lambda inputs, weight: linear(inputs, weight),
    lambda inputs, weight: torch.mm(weight, inputs.t()),
)


class Bound:
    """Does a decode step's matrix products and cache read, and nothing else, `steps` times a round.

    Each `nn.Linear` runs once on B rows, the output head included, in the order of factors that is faster on
    this machine; keys and values of `window` tokens of each row are read once. No attention arithmetic,
    norms, rotations, activations or sampling.
    """

    def __init__(self, subject: Subject, work: Workload, steps: int = _STEPS) -> None:
        if subject.module is None:
            raise EngineError("a toy has no matrix products to be bound by")
        self.rows, self.steps = work.rows, steps
        answer = work.turns * work.max_new_tokens
        pages = [len(page.ids) for page in work.pages]
        answer += round((work.turns - 1) * statistics.fmean(pages)) if pages else 0
        self.window = round(statistics.fmean(map(len, work.prompts)) + answer / 2)
        """W: the mean length of a record that decodes, were no answer to end early."""
        self.layers = [layer for layer in subject.module.modules() if isinstance(layer, nn.Linear)]
        self.inputs = [_ones(layer, work.rows) for layer in self.layers]
        self.cache = _make_cache(subject.module, self.rows, self.window)
        self.multiply = min(_ORDERS, key=self._time_products)

    def __call__(self) -> EngineRun:
        """Run the steps; the tokens are those that B rows would have sampled."""
        start = time.perf_counter()
        with torch.no_grad():
            for _ in range(self.steps):
                self._step()
        seconds = time.perf_counter() - start
        tokens = self.rows * self.steps
        return EngineRun(seconds, tokens, decode_s=seconds, decode_tokens=tokens, steps=self.steps)

    def close(self) -> None:
        """Drop the cache."""
        self.cache = []

    def _time_products(self, multiply: Multiply) -> float:
        """Return the seconds that the products of a step take, the least of a few tries."""
        seconds = []
        for _ in range(_TRIES):
            start = time.perf_counter()
            self._run_products(multiply)
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    @torch.no_grad()
    def _run_products(self, multiply: Multiply) -> None:
        for layer, inputs in zip(self.layers, self.inputs, strict=True):
            multiply(inputs, layer.weight)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def _step(self) -> None:
        self._run_products(self.multiply)
        for buffer in self.cache:
            buffer.sum()
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def _ones(layer: nn.Linear, rows: int) -> Tensor:
    return torch.ones((rows, layer.in_features), dtype=layer.weight.dtype, device=layer.weight.device)


def _make_cache(module: Any, rows: int, window: int) -> list[Tensor]:
    """Return the bytes of each layer's keys and values as float32, the type whose sum only reads."""
    model = causal_lm(module)
    size = torch.empty((), dtype=model.dtype).element_size()
    counts = [rows * window * heads * (k + v) * size // 4 for heads, k, v in model.cache_shapes]
    return [torch.ones(count, device=model.device) for count in counts]
