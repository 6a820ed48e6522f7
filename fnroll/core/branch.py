"""Records that branch: `fork` copies them, `rewind` takes them back to how they stood."""

from __future__ import annotations

import torch
from torch import Tensor

from fnroll.core import queue as queues
from fnroll.core import types as t
from fnroll.core.buffer import put
from fnroll.core.fields import PER_TOKEN
from fnroll.core.pool import Layers, disown, num_slots, pool_of, read_tokens, write_tokens
from fnroll.core.tree import replace, tree_map
from fnroll.core.types import Pool, Records, RolloutState, Rows


def _find(places: Tensor, record: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each record, `[R]`, whether one of `places`, `[B]`, holds it, and which."""
    held = places == record[:, None]
    return held.any(dim=1), held.to(torch.int64).argmax(dim=1)


def _copy_cached(
    state: RolloutState, source: Tensor, target: Tensor, slot: Tensor, window: int
) -> RolloutState:
    """Give targets, in pool slots, what is cached of their sources in rows or pool slots."""
    pool, rows = pool_of(state), state.rows
    in_row, row = _find(rows.record, source)
    in_slot, place = _find(pool.owner[:-1], source)
    length = torch.where(in_row, rows.cached[row], torch.where(in_slot, pool.length[place], 0))
    is_sound = in_slot & ~in_row | (rows.sound[row] >= length)
    real = (slot < num_slots(pool)) & (length > 0) & is_sound
    length = torch.where(real, length, 0)

    def copy(layers: Layers, cached: Layers) -> Layers:
        pairs = zip(read_tokens(cached, row, window), read_tokens(layers, place, window), strict=True)
        values = (torch.where(in_row[:, None, None, None], a, b) for a, b in pairs)
        return write_tokens(layers, values, slot, length, window)

    new = Pool(
        keys=copy(pool.keys, state.cache.keys),
        values=copy(pool.values, state.cache.values),
        owner=put(pool.owner, (slot,), torch.where(real, target, Pool.FREE)),
        length=put(pool.length, (slot,), length),
    )
    return replace(state, pool=new)


def fork(
    state: RolloutState,
    source: Tensor,
    target: Tensor,
    *,
    key: Tensor | None = None,
    slot: Tensor | None = None,
    window: int | None = None,
) -> RolloutState:
    """Copy records into free lines, where they live on by themselves; the sources stay as they are.

    A copy of a record that runs or is queued is `PENDING`, at the back of the queue; one of a record that
    waits for tools waits too.

    Args:
      state: before.
      source: `[R]` int64, any lines; the sink for padding.
      target: `[R]` int64, lines of status `FREE` or ended ones, none twice; the sink for padding.
      key: `[R, 2]` int64, of the copies; None leaves them that of their source, with whose noise they go on.
      slot: `[R]` int64, free pool slots that take what is cached of the sources, in rows or in the pool; P
        for none. None re-computes it when a copy is admitted.
      window: static; with `slot`: W, at least the largest length of these records less one; None is T.
    """
    sink = state.num_records
    source = torch.where(target == sink, sink, source)
    status = state.records.status[source]
    status = torch.where(status == t.RUNNING, t.PENDING, status)

    def copy(leaf: Tensor | None) -> Tensor | None:
        return None if leaf is None else put(leaf, (target,), leaf[source])

    state = replace(state, pool=disown(state.pool, target))

    if slot is not None:
        state = _copy_cached(state, source, target, slot, state.max_length if window is None else window)
    records: Records = tree_map(copy, state.records)
    records = replace(records, status=put(records.status, (target,), status))
    if key is not None:
        records = replace(records, key=put(records.key, (target,), key))
    queue = queues.push_back(state.queue, torch.where(status == t.PENDING, target, sink))
    return replace(state, records=records, queue=queue, sampling=tree_map(copy, state.sampling))


def _count_turns(mask: Tensor, length: Tensor) -> Tensor:
    """Return how many turns `[R]` records finished before something followed them within `length`."""
    index = torch.arange(mask.shape[1] - 1, device=mask.device)
    return (mask[:, :-1] & ~mask[:, 1:] & (index + 1 < length[:, None])).sum(dim=-1)


def _cut(records: Records, line: Tensor, length: Tensor) -> Records:
    """Clear every per-token field beyond `length` to what a fresh line holds."""
    beyond = torch.arange(records.tokens.shape[1], device=line.device) >= length[:, None]

    def clear(old: Tensor, empty: float) -> Tensor:
        hidden = beyond.reshape(*beyond.shape, *[1] * (old.ndim - 2))
        return put(old, (line,), old[line].masked_fill(hidden, empty))

    cleared = {
        name: clear(old, field.empty)
        for name, field in PER_TOKEN.items()
        if (old := getattr(records, name)) is not None
    }
    return replace(records, **cleared, length=put(records.length, (line,), length))


def rewind(state: RolloutState, record: Tensor, length: Tensor, limit: Tensor | None = None) -> RolloutState:
    """Take records back to how they stood when they had `length` tokens, and queue them in front.

    A record is `PENDING` then, and its row is free; one cut behind a sampled stop id is `WAITING` for its
    tools. What the pool holds of the shorter record stays; of what was cut off nothing does.

    Args:
      state: before.
      record: `[R]` int64, any lines; the sink for padding.
      length: `[R]` int64, at least that of the prompt and at most the record's; 0 for padding.
      limit: `[R]` int64: length at which the turn that is then under way must stop, above `length`; None
        keeps the present one.
    """
    old, sink = state.records, state.num_records
    length = torch.where(record == sink, 0, length)
    last = (length - 1).clamp(min=0)
    stopped = old.loss_mask[record, last] & torch.isin(old.tokens[record, last], state.stop_ids)
    stopped = stopped & (record != sink)
    turn = torch.where(record == sink, 0, _count_turns(old.loss_mask[record], length) + stopped)
    status = torch.where(stopped, t.WAITING, torch.where(record == sink, t.FREE, t.PENDING))
    new = _cut(old, record, length)
    new = replace(
        new,
        turn=put(new.turn, (record,), turn),
        status=put(new.status, (record,), status),
        reason=put(new.reason, (record,), torch.where(stopped, t.EOS, t.NO_REASON)),
        limit=new.limit if limit is None else put(new.limit, (record,), limit),
    )
    held = (state.rows.record[:, None] == record).any(dim=1)
    queue = queues.drop(state.queue, record)
    return replace(
        state,
        records=new,
        rows=replace(
            state.rows,
            record=torch.where(held, Rows.IDLE, state.rows.record),
            cached=torch.where(held, 0, state.rows.cached),
        ),
        queue=queues.push_front(queue, torch.where(stopped, sink, record)),
        pool=_shorten(state.pool, record, length),
    )


def _shorten(pool: Pool | None, record: Tensor, length: Tensor) -> Pool | None:
    if pool is None:
        return None
    owned, place = _find(record, pool.owner)
    most = torch.where(owned, (length[place] - 1).clamp(min=0), pool.length)
    return replace(pool, length=torch.minimum(pool.length, most))
