"""How a record is taken back to an earlier place."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fnroll.records.status import Status
from fnroll.records.turns import find_turns


class Place(NamedTuple):
    """How a record stood when it had fewer tokens."""

    status: Status
    num_turns: int
    tool_calls: tuple[Mapping[str, Any], ...]
    """Those that were answered by then."""


def find_place(
    label: str,
    loss_mask: Sequence[bool],
    prompt_length: int,
    num_turns: int,
    tool_calls: Sequence[Mapping[str, Any]],
    length: int,
) -> Place:
    """Return how a record stood when it had `length` tokens.

    Args:
      label: how messages name the record.
      loss_mask: of the whole record.
      prompt_length: how many of its tokens are the prompt.
      num_turns: turns that it finished.
      tool_calls: all of them, each with its `turn`.
      length: tokens to be left.

    Raises:
      ValueError: naming `length` and the bound, if it lies in the prompt, between two turns, or beyond.
    """
    if length < prompt_length:
        raise ValueError(
            f"{label}: rewind to {length} goes beyond the prompt, which has {prompt_length} tokens"
        )
    if length > len(loss_mask):
        raise ValueError(f"{label}: rewind to {length}, but the record has {len(loss_mask)} tokens")
    turns = find_turns(loss_mask)
    _check_between(label, turns, length, len(loss_mask))
    # A turn is over if something stands behind it, or if the record says so of its last one.
    over = [
        (start, stop)
        for index, (start, stop) in enumerate(turns)
        if stop <= length and (stop < len(loss_mask) or index < num_turns)
    ]
    calls = tuple(call for call in tool_calls if _is_answered(over, call["turn"], length))
    return Place(_status(over, loss_mask[:length], prompt_length), len(over), calls)


def _check_between(label: str, turns: Sequence[tuple[int, int]], length: int, end: int) -> None:
    bounds = [(left[1], right[0]) for left, right in itertools.pairwise(turns)]
    if turns:
        bounds.append((turns[-1][1], end))
    for start, stop in bounds:
        if start < length < stop:
            raise ValueError(
                f"{label}: rewind to {length} cuts what stands between two turns, tokens {start} to {stop}; "
                f"rewind to {start} or {stop}"
            )


def _is_answered(over: Sequence[tuple[int, int]], turn: int, length: int) -> bool:
    return turn < len(over) and over[turn][1] < length


def _status(over: Sequence[tuple[int, int]], mask: Sequence[bool], prompt: int) -> Status:
    if not mask[prompt:] or not mask[-1]:
        return Status.PENDING
    return Status.WAITING if over and over[-1][1] == len(mask) else Status.RUNNING
