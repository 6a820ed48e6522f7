"""Routers that are listened to, or told what to choose, for the time of a block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fnroll.routing.errors import (
    ReplayScopeError,
    RouterNotCalledError,
    RouterUnsupportedError,
    RouteShapeError,
)
from fnroll.routing.metrics import ReplayMetrics, replay_metrics
from fnroll.routing.routers import Router, discover_routers, to_schema
from fnroll.routing.scores import ScoreFunction, replay_top_k
from fnroll.routing.selfcheck import choose_score
from fnroll.routing.values import check_routes


class _Tap:
    """A forward hook of one router; keyed by its layer, never by the order of calls."""

    def __init__(self, router: Router, wanted: Tensor | None, score: ScoreFunction | None) -> None:
        self.router = router
        self.wanted = wanted
        self.score = score
        self.fired = 0
        self.logits: Tensor | None = None
        self.native: Tensor | None = None

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        logits, weights, native = self._split(output)
        self.fired += 1
        self.logits, self.native = logits.detach(), native.detach()
        if self.wanted is None:
            return None
        if len(self.wanted) != len(logits):
            raise RouteShapeError(
                f"{self.router.label} got {len(logits)} tokens; there are routes of "
                f"{len(self.wanted)}, which must be those of the whole batch, padding included"
            )
        if self.score is None:
            self.score = self._choose(logits, weights, native)
        forced, chosen = replay_top_k(
            logits, self.wanted.to(logits.device), native, self.score, native_weights=weights
        )
        return (output[0], forced, chosen, *output[3:])

    def _choose(self, logits: Tensor, weights: Tensor, native: Tensor) -> ScoreFunction:
        scale = getattr(self.router.module, "routed_scaling_factor", 1.0)
        scales = (float(scale),) if isinstance(scale, int | float) and scale > 0 else ()
        with torch.no_grad():
            return choose_score(logits, native, weights, scales=scales, where=self.router.label).score

    def _split(self, output: Any) -> tuple[Tensor, Tensor, Tensor]:
        parts = output[:3] if isinstance(output, tuple) else ()
        if len(parts) != 3 or [part.shape[-1] for part in parts] != [
            self.router.num_experts, self.router.top_k, self.router.top_k
        ]:  # fmt: skip
            raise RouterUnsupportedError(
                f"{self.router.label} must return a tuple of logits [T, {self.router.num_experts}], weights "
                f"and indices [T, {self.router.top_k}]"
            )
        return parts


class _Calls:
    """A hook before each forward of the model: how many there are, and how many with gradient."""

    def __init__(self) -> None:
        self.total = 0
        self.with_gradient = 0

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        self.total += 1
        self.with_gradient += torch.is_grad_enabled()

    def are_recomputed(self, fired: int) -> bool:
        """Say whether a router that fired so often was called again for each forward with gradient."""
        # Without a forward of the model itself, parts of it were called, once at least.
        return fired >= (self.total + self.with_gradient if self.total else 2)


class RouteTaps:
    """What the routers of a block said."""

    def __init__(self, taps: Sequence[_Tap]) -> None:
        self._taps = taps

    @property
    def scores(self) -> tuple[ScoreFunction | None, ...]:
        """By layer, the function that gives a router's weights, once known; `scores` of a later replay."""
        return tuple(tap.score for tap in self._taps)

    @property
    def native_routes(self) -> Tensor:
        """`[T, L, K]` int64: what the routers chose by themselves in the last forward."""
        return torch.stack([tap.native for tap in self._called() if tap.native is not None], dim=1)

    def metrics(self, counted: Tensor | None = None) -> ReplayMetrics:
        """Compare the last forward's replay with the routers' own choice; `counted` as `replay_metrics`."""
        taps = self._called()
        wanted = [tap.wanted for tap in taps if tap.wanted is not None]
        score = taps[0].score
        if len(wanted) != len(taps) or score is None:
            raise RouteShapeError("nothing was replayed, so there is nothing to compare")
        logits = [tap.logits for tap in taps if tap.logits is not None]
        indices = torch.stack(wanted, dim=1).to(logits[0].device)
        return replay_metrics(logits, indices, self.native_routes, score, counted=counted)

    def _called(self) -> Sequence[_Tap]:
        silent = [tap.router.label for tap in self._taps if not tap.fired]
        if silent:
            raise RouterNotCalledError(
                f"{len(silent)} of {len(self._taps)} routers were not called, first {silent[0]}: no "
                f"forward, a fused kernel that passes them by, or a module that was compiled before"
            )
        return self._taps


@contextmanager
def listen(model: nn.Module, *, routers: Sequence[Router] | None = None) -> Iterator[RouteTaps]:
    """Record what the routers of a model choose within the block.

    Raises:
      RouterNotCalledError: at the end, if a router was not called.
    """
    taps = [_Tap(router, None, None) for router in routers or discover_routers(model)]
    with _attached(taps):
        yield RouteTaps(taps)
    RouteTaps(taps)._called()


@contextmanager
def replay(
    model: nn.Module,
    routes: Tensor,
    *,
    routers: Sequence[Router] | None = None,
    scores: Sequence[ScoreFunction | None] | None = None,
    allow_early_exit: bool = False,
) -> Iterator[RouteTaps]:
    """Let the routers of a model choose the replayed experts within the block.

    The block must hold the backward pass too where activations are checkpointed: it calls routers
    again. Auxiliary load-balancing losses still see the model's own logits. For the policy only: a reference
    or a teacher chooses for itself.

    Args:
      model: whose routers are told.
      routes: `[B, S, L, K]` of the schema's dtype, from `collate`; of all tokens of each forward.
      routers: from `discover_routers`; None looks for them.
      scores: by layer, how the family weighs; None, or None in it, finds out in the first forward.
      allow_early_exit: let the block end before the backward pass although activations are checkpointed.

    Raises:
      RouteError: if routes do not fit the model, a router's weights are no known function of its logits, or
        the model is in another replay.
      RouterNotCalledError: at the end, if a router was not called.
      ReplayScopeError: at the end, if a backward pass is still to come that would call routers again.
    """
    found = tuple(routers or discover_routers(model))
    flat = routes.flatten(0, -3)
    check_routes("routes", flat, to_schema(found))
    _check_jitter(model)
    given = scores if scores is not None else [None] * len(found)
    if len(given) != len(found):
        raise RouteShapeError(f"there are scores of {len(given)} layers, and {len(found)} routers")
    taps = [
        _Tap(router, flat[:, layer], score)
        for layer, (router, score) in enumerate(zip(found, given, strict=True))
    ]
    recomputes = _recomputes(model) and torch.is_grad_enabled()
    calls = _Calls()
    counter = model.register_forward_pre_hook(calls)
    try:
        with _attached(taps):
            yield RouteTaps(taps)
    finally:
        counter.remove()
    RouteTaps(taps)._called()
    if recomputes and not allow_early_exit and not calls.are_recomputed(max(tap.fired for tap in taps)):
        raise ReplayScopeError(
            "activations are checkpointed and a backward pass is still to come, which would call routers "
            "again and let them choose for themselves. Keep the block open through backward()"
        )


@contextmanager
def _attached(taps: Sequence[_Tap]) -> Iterator[None]:
    for tap in taps:
        if any(isinstance(hook, _Tap) for hook in tap.router.module._forward_hooks.values()):
            raise ReplayScopeError(f"{tap.router.label} is replayed or listened to already")
    handles = [tap.router.module.register_forward_hook(tap) for tap in taps]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _recomputes(model: nn.Module) -> bool:
    return model.training and any(
        getattr(module, "gradient_checkpointing", False) for module in model.modules()
    )


def _check_jitter(model: nn.Module) -> None:
    for name, module in model.named_modules():
        noise = getattr(module, "jitter_noise", 0) or getattr(module, "router_jitter_noise", 0)
        if module.training and isinstance(noise, int | float) and noise > 0:
            raise RouterUnsupportedError(
                f"{name} adds jitter of {noise} to its input in training; it must be 0"
            )
