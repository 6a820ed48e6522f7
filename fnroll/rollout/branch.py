"""`fork` and `rewind` of a state, by line numbers, with every wrong place named before anything moves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fnroll.core import branch
from fnroll.core import types as t
from fnroll.core.types import RolloutState

_OPEN = (t.PENDING, t.RUNNING, t.WAITING)


def _line(state: RolloutState, name: str, number: int) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < state.num_records:
        raise ValueError(f"{name} is {number!r}; the state has lines 0 to {state.num_records - 1}")
    return int(state.records.status[number])


def _tensor(state: RolloutState, values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=state.stop_ids.device)


def fork(
    state: RolloutState,
    sources: Sequence[int],
    targets: Sequence[int],
    *,
    keys: Tensor | None = None,
    slots: Sequence[int] | None = None,
) -> RolloutState:
    """Copy records into free lines, as `fnroll.core.branch.fork` does.

    Args:
      state: before.
      sources: lines that hold a record.
      targets: as many lines, that hold none or one that has ended.
      keys: `[R, 2]` int64, of the copies; None leaves them those of their sources.
      slots: as many free pool slots, which take what is cached of the sources; None re-computes it.

    Raises:
      ValueError: naming the line or slot, and what it holds.
    """
    if len(sources) != len(targets):
        raise ValueError(f"fork has {len(sources)} sources and {len(targets)} targets; it needs as many")
    for source in sources:
        if _line(state, "a source of fork", source) == t.FREE:
            raise ValueError(f"fork from line {source}, which holds no record")
    for target in targets:
        status = _line(state, "a target of fork", target)
        if status in _OPEN:
            raise ValueError(f"fork onto line {target}, whose record is {t.STATUS_NAMES[status]}")
        if list(targets).count(target) > 1:
            raise ValueError(f"fork onto line {target} twice")
    if slots is not None:
        _check_slots(state, slots, len(targets))
    return branch.fork(
        state,
        _tensor(state, sources),
        _tensor(state, targets),
        key=keys,
        slot=None if slots is None else _tensor(state, slots),
    )


def _check_slots(state: RolloutState, slots: Sequence[int], count: int) -> None:
    owners = [] if state.pool is None else state.pool.owner[:-1].tolist()
    if len(slots) != count or len(set(slots)) != count:
        raise ValueError(
            f"fork has slots {list(slots)} for {count} targets; it needs one of its own for each"
        )
    for slot in slots:
        if not 0 <= slot < len(owners):
            raise ValueError(f"fork into slot {slot}; the pool has {len(owners)} slots")
        if owners[slot] >= 0:
            raise ValueError(f"fork into slot {slot}, which holds line {owners[slot]}")


def rewind(
    state: RolloutState,
    records: Sequence[int],
    lengths: Sequence[int],
    limits: Sequence[int] | None = None,
) -> RolloutState:
    """Take records back to how they stood when they had so many tokens, as `fnroll.core.branch.rewind` does.

    Args:
      state: before.
      records: lines that hold a record, none twice.
      lengths: as many lengths, each at least that of the prompt.
      limits: as many lengths at which the turns under way then must stop; None keeps the present ones.

    Raises:
      ValueError: naming the line, the length, and what is allowed.
    """
    if not len(records) == len(set(records)) == len(lengths) == len(lengths if limits is None else limits):
        raise ValueError(
            f"rewind has records {list(records)}, {len(lengths)} lengths and "
            f"{'no' if limits is None else len(limits)} limits; it needs as many of each, and no record twice"
        )
    for record, length in zip(records, lengths, strict=True):
        if _line(state, "a record of rewind", record) == t.FREE:
            raise ValueError(f"rewind line {record}, which holds no record")
        most = int(state.records.length[record])
        sampled = state.records.loss_mask[record, :most].nonzero()
        prompt = int(sampled[0]) if len(sampled) else most
        if not prompt <= length <= most:
            raise ValueError(
                f"rewind line {record} to {length} tokens; its prompt has {prompt} and the record {most}"
            )
    return branch.rewind(
        state,
        _tensor(state, records),
        _tensor(state, lengths),
        None if limits is None else _tensor(state, limits),
    )
