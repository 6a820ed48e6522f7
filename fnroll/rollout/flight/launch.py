"""From records to flights, and from flights that have ended back to records."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from fnroll.core.rng import init_keys
from fnroll.dialogue.chat import Segment
from fnroll.records.batch import hash_prompt_id
from fnroll.records.record import Reason, RolloutRecord, Status
from fnroll.records.status import UNFINISHED
from fnroll.rollout.flight.budget import Budget
from fnroll.rollout.flight.flight import Ended, Flight
from fnroll.rollout.flight.prompts import Prompts
from fnroll.rollout.flight.resume import resume_flight
from fnroll.rollout.flight.tape import prompt_tape, to_fields


def make_flights(
    records: Sequence[RolloutRecord],
    prompts: Prompts,
    budget: Budget,
    seed: int,
    step: int,
    stop_ids: Collection[int],
) -> list[Flight]:
    """Return a flight for every record that is not over yet, with the conversation of its prompt where known.

    Raises:
      ValueError: naming the record whose prompt cannot be fed, or that cannot be gone on with; nothing has
        run by then.
    """
    open_ = [(index, record) for index, record in enumerate(records) if is_open(record)]
    if not open_:
        return []
    numbers = [hash_prompt_id(record.prompt_id or 0) for _, record in open_]
    samples = torch.tensor([record.sample or 0 for _, record in open_])
    keys = init_keys(seed, step, torch.tensor(numbers), samples).tolist()
    encoded: dict[int, tuple[list[int], Segment | None, Mapping[str, str] | None]] = {}
    flights = []
    for (index, record), key in zip(open_, keys, strict=True):
        # The samples of a prompt share its messages or ids, and so what they are encoded to.
        source = id(record.messages if record.prompt_ids is None else record.prompt_ids)
        if source not in encoded:
            encoded[source] = (*prompts.encode(record), prompts.describe(record))
        prompt, segment, made_of = encoded[source]
        if record.is_unfinished:
            flight = resume_flight(index, record, prompt, key, budget, stop_ids, made_of)
        else:
            record = record.with_rollout(rendered_from=made_of)
            flight = _start_flight(index, record, prompt, key, budget)
        flights.append(flight.replace(segment=segment))
    return flights


def _start_flight(
    index: int, record: RolloutRecord, prompt: list[int], key: list[int], budget: Budget
) -> Flight:
    count = len(prompt)
    limit, reason = budget.limit(count, 0)
    return Flight(
        index=index, record=record, prompt_ids=prompt, key=key, limit=limit, limit_reason=reason,
        turn_start=count, length=count,
    )  # fmt: skip


def is_open(record: RolloutRecord) -> bool:
    """Whether there is something to roll out."""
    return record.is_unfinished or not record.is_rolled_out


def end_without_room(flight: Flight) -> Ended | None:
    """Return how a record ends that has no room for a token: untouched; None if it has or is waiting."""
    if flight.length < flight.limit or flight.is_waiting:
        return None
    if flight.begun is None or flight.length == len(flight.prompt_ids):
        return Ended(flight, prompt_tape(flight.prompt_ids), Status.TRUNCATED, Reason.PROMPT)
    # A turn that a smaller limit than it had cuts here is one that it took.
    begun = flight.begun
    return Ended(flight.grow(len(begun), begun.loss_mask[-1]), begun, Status.TRUNCATED, flight.limit_reason)


def land(
    ended: Ended, decode: Any, *, with_log_probs: bool, run: Mapping[str, Any] | None = None
) -> RolloutRecord:
    """Return the record of a flight that has ended, or was cut.

    Args:
      ended: the flight, what its line held, and how it ended.
      decode: from ids to text; None without a tokenizer.
      with_log_probs: keep the log-probs.
      run: of the call; an unfinished record keeps it.
    """
    flight, tape = ended.flight, ended.tape
    count = len(flight.prompt_ids)
    fields: dict[str, Any] = to_fields(tape)
    if not with_log_probs:
        fields["log_probs"] = None
    return flight.record.with_rollout(
        **fields,
        prompt_length=count,
        status=ended.status,
        reason=ended.reason,
        error=ended.error,
        # A turn of a resumed record that waits for its tools is counted when it is read again.
        num_turns=flight.num_turns + flight.is_waiting,
        tool_calls=flight.tool_calls,
        is_exact=flight.is_exact,
        num_tool_outputs_truncated=flight.num_cut,
        response=None if decode is None else decode(tape.tokens[count:]),
        run=run if ended.status in UNFINISHED else None,
    )
