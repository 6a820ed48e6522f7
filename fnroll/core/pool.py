"""Keys and values that wait for a row: parked, brought back, and shared between records.

A row's cache is intact until the row is admitted again, also after `retire` has freed it: an idle row writes
to the sink slot only. So a turn is parked after the step that ended it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from fnroll.core.buffer import put
from fnroll.core.tree import replace
from fnroll.core.types import Cache, Pool, RolloutState, Rows

Layers = tuple[Tensor, ...]


def init_pool(cache: Cache, slots: int) -> Pool | None:
    """Return an empty pool of `slots` slots, each as long as a row of `cache`; None for no slots."""
    if not slots:
        return None

    def layer(like: Tensor) -> Tensor:
        return torch.zeros((slots, *like.shape[1:]), dtype=like.dtype, device=like.device)

    free = torch.full((slots + 1,), Pool.FREE, dtype=torch.int64, device=cache.keys[0].device)
    return Pool(
        keys=tuple(map(layer, cache.keys)),
        values=tuple(map(layer, cache.values)),
        owner=free,
        length=torch.zeros_like(free),
    )


def pool_of(state: RolloutState) -> Pool:
    """Return the state's pool.

    Raises:
      ValueError: if it has none.
    """
    if state.pool is None:
        raise ValueError("this state has no pool: give `init_state` one, from `init_pool(cache, slots)`")
    return state.pool


def num_slots(pool: Pool) -> int:
    """Return P."""
    return pool.owner.shape[0] - 1


def disown(pool: Pool | None, record: Tensor) -> Pool | None:
    """Free the slots of lines that are about to hold another record or none, `[R]` int64."""
    if pool is None:
        return None
    owned = (pool.owner[:, None] == record).any(dim=1)
    return replace(
        pool,
        owner=torch.where(owned, Pool.FREE, pool.owner),
        length=torch.where(owned, 0, pool.length),
    )


def write_tokens(
    layers: Layers, values: Iterable[Tensor], target: Tensor, length: Tensor, window: int
) -> Layers:
    """Return `layers`, each `[B, T+1, H, D]`, with the first `length` tokens of new values.

    Args:
      layers: before.
      values: of each layer `[R, W, H, D]`; an iterator is asked for one layer at a time.
      target: `[R]` int64: row or slot; one past the last for padding.
      length: `[R]` int64; 0 for padding.
      window: W.
    """
    places, sink = layers[0].shape[0], layers[0].shape[1] - 1
    position = torch.arange(window, device=target.device)
    slot = torch.where(position < length[:, None], position, sink)
    where = (target.clamp(max=places - 1)[:, None].expand_as(slot), slot)
    return tuple(put(layer, where, new) for layer, new in zip(layers, values, strict=True))


def read_tokens(layers: Layers, source: Tensor, window: int) -> Iterator[Tensor]:
    """Yield of each layer the first `window` tokens of some rows or slots, `[R, W, H, D]`."""
    index = source.clamp(max=layers[0].shape[0] - 1)
    return (layer[:, :window][index] for layer in layers)


def copy_tokens(
    layers: Layers, others: Layers, source: Tensor, target: Tensor, length: Tensor, window: int
) -> Layers:
    """Return `layers` with the first `length` tokens of places in `others`, one layer at a time."""
    return write_tokens(layers, read_tokens(others, source, window), target, length, window)


def _fill(
    state: RolloutState, source: Cache | Pool, entries: tuple[Tensor, ...], window: int
) -> RolloutState:
    """Copy `(source, row, length)`, each `[R]`, into rows, which then have so much cached."""
    start, row, length = entries
    cache, rows = state.cache, state.rows
    hit = row == torch.arange(state.num_rows, device=row.device)[:, None]
    cached = torch.where(hit.any(dim=1), (hit * length).sum(dim=1), rows.cached)
    return replace(
        state,
        cache=Cache(
            keys=copy_tokens(cache.keys, source.keys, start, row, length, window),
            values=copy_tokens(cache.values, source.values, start, row, length, window),
        ),
        rows=replace(rows, cached=cached, sound=_sound_of(state, source, entries)),
    )


def _sound_of(state: RolloutState, source: Cache | Pool, entries: tuple[Tensor, ...]) -> Tensor:
    """Return `Rows.sound` after a copy: what was not finite comes along if it is among the tokens copied."""
    start, row, length = entries
    if isinstance(source, Pool):  # nothing else is parked
        sound = torch.full_like(length, Rows.ALL)
    else:
        sound = state.rows.sound[start.clamp(max=state.num_rows - 1)]
        sound = torch.where(sound < length, sound, Rows.ALL)
    hit = row == torch.arange(state.num_rows, device=row.device)[:, None]
    return torch.where(hit.any(dim=1), torch.where(hit, sound, Rows.ALL).amin(dim=1), state.rows.sound)


def park(state: RolloutState, row: Tensor, slot: Tensor, record: Tensor, *, window: int) -> RolloutState:
    """Copy the keys and values of rows into pool slots, also of rows that `retire` has just freed.

    Args:
      state: after the step that ended the records' turns, before the next `admit`.
      row: `[R]` int64; one past the last for padding. One whose keys or values were not finite is not parked.
      slot: `[R]` int64; what a slot held is lost; P for padding.
      record: `[R]` int64: the line that the row decoded, with its last token not yet fed; the sink for
        padding.
      window: static; W, at least the largest length of these records less one.
    """
    pool = pool_of(state)
    real = (slot < num_slots(pool)) & (row < state.num_rows)
    length = torch.where(real, state.records.length[record] - 1, 0).clamp(min=0)
    real = real & (state.rows.sound[row.clamp(max=state.num_rows - 1)] >= length)
    length = torch.where(real, length, 0)
    new = Pool(
        keys=copy_tokens(pool.keys, state.cache.keys, row, slot, length, window),
        values=copy_tokens(pool.values, state.cache.values, row, slot, length, window),
        owner=put(pool.owner, (slot,), torch.where(real, record, Pool.FREE)),
        length=put(pool.length, (slot,), length),
    )
    return replace(state, pool=new)


def release(state: RolloutState, slot: Tensor) -> RolloutState:
    """Free pool slots, `[R]` int64; P for padding."""
    pool = pool_of(state)
    owner = put(pool.owner, (slot,), torch.full_like(slot, Pool.FREE))
    length = put(pool.length, (slot,), torch.zeros_like(slot))
    return replace(state, pool=replace(pool, owner=owner, length=length))


def unpark(state: RolloutState, slot: Tensor, row: Tensor, *, window: int) -> RolloutState:
    """Move what pool slots hold into the rows that their owners were given; the slots are free then.

    Args:
      state: after `admit`, before `prefill`, which then feeds only what is missing.
      slot: `[R]` int64, each owned by the record of its row; P for padding.
      row: `[R]` int64; one past the last for padding.
      window: static; W, at least the largest length of these slots.
    """
    pool = pool_of(state)
    real = (slot < num_slots(pool)) & (row < state.num_rows)
    length = torch.where(real, pool.length[slot], 0)
    return release(_fill(state, pool, (slot, row, length), window), slot)


def share(
    state: RolloutState, source: Tensor, row: Tensor, length: Tensor, *, window: int, pooled: bool = False
) -> RolloutState:
    """Copy the keys and values of a common prefix into rows; what they come from keeps them.

    A row that `admit` has just filled is a source only after its own `prefill`; a freed row is one until it
    is admitted again.

    Args:
      state: after `admit`, before the `prefill` of these rows.
      source: `[R]` int64: rows, also such as are targets here, of which the old content is copied; with
        `pooled`, pool slots.
      row: `[R]` int64, the targets; one past the last for padding.
      length: `[R]` int64: tokens that both records begin with, all cached in the source, and fewer than the
        target's record knows; 0 for padding.
      window: static; W, at least the largest length given.
      pooled: static; copy from the pool.
    """
    return _fill(state, pool_of(state) if pooled else state.cache, (source, row, length), window)


def move(state: RolloutState, source: Tensor, row: Tensor, *, window: int) -> RolloutState:
    """Move running records to idle rows, with what is cached of them.

    Args:
      state: between two steps.
      source: `[R]` int64, rows that hold a record, no row twice; one past the last for padding.
      row: `[R]` int64, idle rows, no row twice; one past the last for padding.
      window: static; W, at least the largest length of these records less one.
    """
    place = torch.arange(state.num_rows, device=row.device)
    held = source.clamp(max=state.num_rows - 1)
    record, cached = state.rows.record[held], state.rows.cached[held]
    filled = _fill(state, state.cache, (source, row, cached), window)
    hit = (row == place[:, None]) & (source < state.num_rows)
    left = (source == place[:, None]).any(dim=1)
    rows = replace(
        filled.rows,
        record=torch.where(
            hit.any(dim=1),
            (hit * record).sum(dim=1),
            torch.where(left, Rows.IDLE, filled.rows.record),
        ),
        cached=torch.where(left, 0, filled.rows.cached),
    )
    return replace(filled, rows=rows)


def forget(state: RolloutState) -> RolloutState:
    """Drop all keys and values, those of old weights for example.

    No row has anything cached then, and no slot an owner; rows that hold a record need a `prefill` again.
    """
    rows = replace(state.rows, cached=torch.zeros_like(state.rows.cached))
    if state.pool is None:
        return replace(state, rows=rows)
    owner, length = torch.full_like(state.pool.owner, Pool.FREE), torch.zeros_like(state.pool.length)
    return replace(state, rows=rows, pool=replace(state.pool, owner=owner, length=length))
