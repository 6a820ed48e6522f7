"""From records to flights, and from flights that have ended back to records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fnroll.core.rng import init_keys
from fnroll.dialogue.chat import Segment
from fnroll.shell.batch import hash_prompt_id
from fnroll.shell.budget import Budget
from fnroll.shell.driver import Ended, Flight, Tape
from fnroll.shell.prompt import Prompts
from fnroll.shell.record import Reason, RolloutRecord, Status


def make_flights(
    records: Sequence[RolloutRecord], prompts: Prompts, budget: Budget, seed: int, step: int
) -> list[tuple[Flight, Segment | None]]:
    """Return a flight for every record that is not rolled out yet, with its conversation where known.

    Raises:
      ValueError: naming the record whose prompt cannot be fed; nothing has run by then.
    """
    fresh = [(index, record) for index, record in enumerate(records) if not record.is_rolled_out]
    if not fresh:
        return []
    numbers = [hash_prompt_id(record.prompt_id or 0) for _, record in fresh]
    samples = torch.tensor([record.sample or 0 for _, record in fresh])
    keys = init_keys(seed, step, torch.tensor(numbers), samples)
    encoded: dict[int, tuple[list[int], Segment | None]] = {}
    flights = []
    for (index, record), key in zip(fresh, keys, strict=True):
        # The samples of a prompt share its messages or ids, and so what they are encoded to.
        source = id(record.messages if record.prompt_ids is None else record.prompt_ids)
        if source not in encoded:
            encoded[source] = prompts.encode(record)
        prompt, segment = encoded[source]
        limit, reason = budget.limit(len(prompt), 0)
        flights.append((Flight(index, record, prompt, key, limit, reason), segment))
    return flights


def end_without_room(flight: Flight) -> Ended:
    """Return how a record ends whose prompt leaves no room for a token: untouched."""
    prompt, count = flight.prompt_ids, len(flight.prompt_ids)
    tape = Tape(list(prompt), [False] * count, [0.0] * count, [-1] * count)
    return Ended(flight, tape, Status.TRUNCATED, Reason.PROMPT)


def to_record(ended: Ended, decode: Any, *, with_log_probs: bool) -> RolloutRecord:
    """Return the record of a flight that has ended.

    Args:
      ended: the flight, what its line held, and how it ended.
      decode: from ids to text; None without a tokenizer.
      with_log_probs: keep the log-probs.
    """
    flight, tape = ended.flight, ended.tape
    count = len(flight.prompt_ids)
    return flight.record.replace(
        tokens=tuple(tape.tokens),
        prompt_length=count,
        loss_mask=tuple(tape.loss_mask),
        log_probs=tuple(tape.log_probs) if with_log_probs else None,
        weight_versions=tuple(tape.weight_versions),
        support=_support(tape),
        status=ended.status,
        reason=ended.reason,
        num_turns=flight.num_turns,
        tool_calls=tuple(flight.tool_calls),
        is_exact=flight.is_exact,
        num_tool_outputs_truncated=flight.num_cut,
        response=None if decode is None else decode(tape.tokens[count:]),
    )


def _support(tape: Tape) -> tuple[tuple[int, ...], ...] | None:
    if tape.support is None:
        return None
    return tuple(tuple(token for token in ids if token >= 0) for ids in tape.support)
