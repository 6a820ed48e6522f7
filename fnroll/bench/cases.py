"""The pure steps alone, each with a state that it has work to do on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from fnroll.core import steps
from fnroll.core import types as t
from fnroll.core.rng import init_keys
from fnroll.core.tree import replace, tree_flatten, tree_unflatten
from fnroll.core.types import RolloutState, Rows, init_state
from fnroll.models.base import Model


@dataclass(frozen=True)
class Case:
    """One step and its arguments."""

    name: str
    step: Callable[..., Any]
    """Pure; its static options are bound."""
    before: tuple[Any, ...]
    """Arguments before the state."""
    state: RolloutState
    after: tuple[Any, ...] = ()
    """Arguments behind the state."""

    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments with a state of their own, which a donated step may consume."""
        return (*self.before, clone(self.state), *self.after)


def clone(state: RolloutState) -> RolloutState:
    """Return a state with memory of its own."""
    leaves, spec = tree_flatten(state)
    copied: RolloutState = tree_unflatten([leaf if leaf is None else leaf.clone() for leaf in leaves], spec)
    return copied


@dataclass(frozen=True)
class Shape:
    """Sizes of the states."""

    rows: int = 16
    lines: int = 32
    max_length: int = 511
    prompt: int = 24
    window: int = 64


def _loaded(model: Model, shape: Shape) -> tuple[RolloutState, tuple[Any, ...]]:
    """Return a state without records, and the arguments that enqueue a full batch."""
    stops = torch.tensor(model.stop_ids, device=model.device)
    empty = init_state(
        model.init_cache(shape.rows, shape.max_length), num_records=shape.lines, stop_ids=stops
    )
    line = torch.arange(shape.rows, device=model.device)
    tokens = (line[:, None] * 7 + torch.arange(shape.prompt, device=model.device)) % model.vocab_size
    count = torch.full_like(line, shape.prompt)
    keys = init_keys(0, 0, line, torch.zeros_like(line))
    # Every other turn ends with the token that is sampled next.
    limit = torch.where(line % 2 == 0, shape.prompt + 1, shape.max_length)
    return empty, (line, tokens, count, limit, keys)


def make_cases(model: Model, shape: Shape | None = None) -> list[Case]:
    """Return each step on a full batch of rows in the middle of a rollout."""
    shape = Shape() if shape is None else shape
    p, fn = model.params, model.fn
    options: dict[str, Any] = {"model": fn, "window": shape.window}
    with torch.no_grad():
        empty, new = _loaded(model, shape)
        queued = steps.enqueue(empty, *new)
        admitted, _ = steps.admit(queued)
        rows = torch.arange(shape.rows, device=model.device)
        running = steps.prefill(p, admitted, rows, width=shape.prompt, **options)
        logits, extended = steps.extend(p, running, **options)
        sampled = steps.sample(extended, logits)
    waiting, output = _waiting(sampled, shape)
    return [
        Case("admit", steps.admit, (), queued),
        Case("extend", partial(_extend, **options), (p,), running),
        Case("sample", steps.sample, (), extended, (logits,)),
        Case("retire", steps.retire, (), sampled),
        Case("decode_step", partial(steps.decode_step, **options), (p,), running),
        Case("append_tool", steps.append_tool, (), waiting, output),
    ]


def _extend(params: Any, state: RolloutState, **options: Any) -> tuple[RolloutState, torch.Tensor]:
    logits, state = steps.extend(params, state, **options)
    return state, logits


def _waiting(state: RolloutState, shape: Shape) -> tuple[RolloutState, tuple[Any, ...]]:
    """Return a state whose records all wait for tools, and the arguments that bring them back."""
    line = state.rows.record
    status = state.records.status.index_put((line,), torch.tensor(t.WAITING, device=line.device))
    free = Rows(
        record=torch.full_like(line, Rows.IDLE),
        cached=torch.zeros_like(line),
        sound=torch.full_like(line, Rows.ALL),
    )
    tokens = torch.ones((shape.rows, 32), dtype=torch.int64, device=line.device)
    count, limit = torch.full_like(line, 32), torch.full_like(line, shape.max_length)
    after = (line, tokens, count, limit)
    return replace(state, rows=free, records=replace(state.records, status=status)), after
