"""Where the turns of a record are, and how a record is taken back to an earlier place or made into two."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fnroll.checks import check_int
from fnroll.records.status import Status

if TYPE_CHECKING:
    from fnroll.records.record import RolloutRecord

PER_TOKEN = ("tokens", "loss_mask", "log_probs", "weight_versions", "support")
"""Fields of a record that have an entry per token."""


def find_turns(loss_mask: Sequence[bool]) -> list[tuple[int, int]]:
    """Return where each turn's sampled tokens begin and end; something always stands between two turns."""
    edges = [at for at in range(1, len(loss_mask)) if loss_mask[at] != loss_mask[at - 1]]
    if loss_mask and loss_mask[0]:
        edges.insert(0, 0)
    if loss_mask and loss_mask[-1]:
        edges.append(len(loss_mask))
    return list(zip(edges[::2], edges[1::2], strict=True))


def rewind(record: RolloutRecord, length: int) -> RolloutRecord:
    """Return a record as it was when it had `length` tokens: see `RolloutRecord.rewind`."""
    tokens, mask, prompt = record.tokens, record.loss_mask, record.prompt_length
    if tokens is None or mask is None or prompt is None:
        raise ValueError(f"{record.label} holds no rollout, so there is nothing to rewind")
    check_int("rewind", "length", length, least=0)
    if length < prompt:
        raise ValueError(
            f"{record.label}: rewind to {length} goes beyond the prompt, which has {prompt} tokens"
        )
    if length > len(tokens):
        raise ValueError(f"{record.label}: rewind to {length}, but the record has {len(tokens)} tokens")
    turns = find_turns(mask)
    _check_place(record, turns, length)
    # A turn is over if something stands behind it, or if the record says so of its last one.
    over = [
        (start, stop)
        for index, (start, stop) in enumerate(turns)
        if stop <= length and (stop < len(tokens) or index < record.num_turns)
    ]
    calls = [call for call in record.tool_calls if _is_answered(over, call["turn"], length)]
    return record.replace(
        **{name: values[:length] for name in PER_TOKEN if (values := getattr(record, name)) is not None},
        **_place(over, mask[:length], prompt),
        num_turns=len(over),
        tool_calls=tuple(calls),
        num_tool_outputs_truncated=sum(bool(call.get("truncated")) for call in calls),
        reason=None,
        response=None,
        reward=None,
    )


def _check_place(record: RolloutRecord, turns: Sequence[tuple[int, int]], length: int) -> None:
    bounds = [(left[1], right[0]) for left, right in itertools.pairwise(turns)]
    if turns:
        bounds.append((turns[-1][1], len(record.tokens or ())))
    for start, stop in bounds:
        if start < length < stop:
            raise ValueError(
                f"{record.label}: rewind to {length} cuts what stands between two turns, tokens {start} to "
                f"{stop}; rewind to {start} or {stop}"
            )


def _is_answered(over: Sequence[tuple[int, int]], turn: int, length: int) -> bool:
    return turn < len(over) and over[turn][1] < length


def _place(over: Sequence[tuple[int, int]], mask: Sequence[bool], prompt: int) -> dict[str, Any]:
    if not mask[prompt:] or not mask[-1]:
        return {"status": Status.PENDING}
    return {"status": Status.WAITING if over and over[-1][1] == len(mask) else Status.RUNNING}
