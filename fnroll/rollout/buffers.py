"""The cache and the pool of a rollout, which live from call to call."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fnroll.config import RolloutConfig, SamplingConfig
from fnroll.core.pool import forget, init_pool
from fnroll.core.tree import replace, tree_leaves
from fnroll.core.types import Cache, Pool, RolloutState, init_state
from fnroll.models.base import Model
from fnroll.rollout.cache.prefixes import Prefixes
from fnroll.rollout.cache.size import count_slots, slot_bytes
from fnroll.rollout.sampler import sampling_params


class Buffers:
    """Keys and values between calls. Whoever makes a state of them has them, until it gives them back.

    Args:
      model: gives their sizes.
      config: how many rows and slots, and of what length.
      multi_turn: whether turns come back.

    Raises:
      ValueError: if the memory has no room for the pool.
    """

    def __init__(self, model: Model, config: RolloutConfig, *, multi_turn: bool) -> None:
        self._model, self._config = model, config
        sizes = {"rows": config.rows, "max_length": config.max_length}
        self.slots = count_slots(config.pool, model, **sizes, multi_turn=multi_turn)
        """P."""
        self._kept: tuple[Cache, Pool | None] | None = None
        self._held: Prefixes | None = None

    @property
    def pool_bytes(self) -> int:
        """Memory of the pool."""
        return self.slots * slot_bytes(self._model, self._config.max_length)

    def init_state(
        self,
        num_records: int,
        stop_ids: Sequence[int],
        sampling: SamplingConfig,
        support_size: int,
        version: int,
    ) -> RolloutState:
        """Return a state without records around the buffers; `take_held` says what is left in them."""
        if self._kept is None:
            cache = self._model.init_cache(self._config.rows, self._config.max_length)
            self._kept = (cache, init_pool(cache, self.slots))
        cache, pool = self._kept
        self._kept = None
        state = init_state(
            cache,
            num_records=num_records,
            stop_ids=torch.tensor(stop_ids, dtype=torch.int64),
            version=version,
            support_size=support_size,
            pool=pool,
        )
        return replace(forget(state), sampling=sampling_params(self._model, sampling, state.sampling))

    def take_held(self) -> Prefixes | None:
        """Return what rows and slots hold, once: a call that fails leaves nothing."""
        held, self._held = self._held, None
        return held

    def keep(self, state: RolloutState, held: Prefixes | None) -> None:
        """Take the buffers of a state back, and what is known of what they hold."""
        self._kept, self._held = (state.cache, state.pool), held

    def renew(self) -> None:
        """Make ready for other weights: what is left of the old ones is dropped, but for `reuse_cache`."""
        layers = [leaf for leaf in tree_leaves(self._kept) if leaf.is_floating_point()]
        if self._config.reuse_cache and all(leaf.isfinite().all() for leaf in layers):
            return
        # Old keys and values are not read; but a masked slot counts 0 times its value, NaN if that is NaN.
        self._held = None
        for leaf in layers:
            leaf.zero_()

    def release(self) -> None:
        """Give the memory back."""
        self._kept = self._held = None
