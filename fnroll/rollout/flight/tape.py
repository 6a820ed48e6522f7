"""What a line of the state holds, on the host, and how it gets back into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fnroll.core.fields import PER_TOKEN, PerToken
from fnroll.core.types import Begun, Records, RolloutState
from fnroll.records.record import RolloutRecord


@dataclass(frozen=True, slots=True)
class Tape:
    """What a line of the state holds, on the host."""

    entries: Mapping[str, list[Any]]
    """By per-token field, all of one length; a field that is not kept is left out."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def tokens(self) -> list[int]:
        """Prompt, sampled tokens and tool output."""
        return self.entries["tokens"]

    @property
    def loss_mask(self) -> list[bool]:
        """True on sampled tokens only."""
        return self.entries["loss_mask"]


def prompt_tape(prompt: Sequence[int]) -> Tape:
    """Return what a line holds before anything is sampled."""
    scalars = [name for name, field in PER_TOKEN.items() if not field.is_vector]
    empty = {name: [PER_TOKEN[name].empty] * len(prompt) for name in scalars}
    return Tape({**empty, "tokens": list(prompt)})


def read_tapes(records: Records, lines: Tensor) -> list[Tape]:
    """Return what some lines hold, `[R]` int64, at least one."""
    lengths = records.length[lines].tolist()
    longest = max(lengths)
    columns = {
        name: field[lines, :longest].cpu().numpy()
        for name in PER_TOKEN
        if (field := getattr(records, name)) is not None
    }
    return [
        Tape({name: column[place, :length].tolist() for name, column in columns.items()})
        for place, length in enumerate(lengths)
    ]


def begin(tapes: Sequence[Tape], turns: Sequence[int], waiting: Sequence[bool], state: RolloutState) -> Begun:
    """Return what a state must know of records that were begun elsewhere, beside their tokens.

    Args:
      tapes: of the records.
      turns: finished, of each; not counting the one that a waiting record has just ended.
      waiting: whether each waits for its tools.
      state: they go into.
    """
    device = state.stop_ids.device
    entries = {
        name: _pad([tape.entries.get(name, ()) for tape in tapes], max(map(len, tapes)), field, kept)
        for name, field in PER_TOKEN.items()
        if name != "tokens" and (kept := getattr(state.records, name)) is not None
    }
    return Begun(
        entries=entries,
        turn=torch.tensor(turns, device=device) + torch.tensor(waiting, device=device),
        waiting=torch.tensor(waiting, device=device),
    )


def _pad(values: Sequence[Sequence[Any]], length: int, field: PerToken, kept: Tensor) -> Tensor:
    """Return lists of entries as one tensor like `kept`, filled up with what is empty."""
    padded = torch.full((len(values), length, *kept.shape[2:]), field.empty, dtype=kept.dtype)
    for row, entries in enumerate(values):
        if not field.is_vector:
            padded[row, : len(entries)] = torch.tensor(entries, dtype=kept.dtype)
            continue
        for place, entry in enumerate(entries):
            padded[row, place, : len(entry)] = torch.tensor(entry, dtype=kept.dtype)
    return padded.to(kept.device)


def to_fields(tape: Tape) -> dict[str, tuple[Any, ...]]:
    """Return the entries as a record has them: tuples, and vectors without what fills them up."""
    return {
        name: tuple(tuple(number for number in entry if number != PER_TOKEN[name].empty) for entry in entries)
        if PER_TOKEN[name].is_vector
        else tuple(entries)
        for name, entries in tape.entries.items()
    }


def to_tape(record: RolloutRecord, *, optional: Sequence[str] = ()) -> Tape:
    """Return the tape that a record was made of.

    Args:
      record: that holds a rollout.
      optional: fields that may be missing, beside vectors; they are empty then.

    Raises:
      ValueError: naming the record and the fields that it has not.
    """
    missing = [
        name
        for name, field in PER_TOKEN.items()
        if getattr(record, name) is None and not field.is_vector and name not in optional
    ]
    if record.tokens is None or missing:
        raise ValueError(f"{record.label} cannot be gone on with: it has no {', '.join(missing)}")
    entries: dict[str, list[Any]] = {}
    for name, field in PER_TOKEN.items():
        values = getattr(record, name)
        if values is not None:
            entries[name] = [list(value) for value in values] if field.is_vector else list(values)
        elif not field.is_vector:
            entries[name] = [field.empty] * len(record.tokens)
    return Tape(entries)
