"""From an unfinished record back to a flight, and whether this call may go on with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fnroll.config import RolloutConfig, SamplingConfig
from fnroll.dialogue.identity import find_changes
from fnroll.models.base import Model
from fnroll.models.weights import digest_weights
from fnroll.records.record import RolloutRecord
from fnroll.records.turns import find_turns
from fnroll.rollout.flight.budget import Budget
from fnroll.rollout.flight.flight import Flight
from fnroll.rollout.flight.tape import Tape, to_tape

# Fields of `RolloutConfig` that decide a record; all others are about how it is run.
_DECIDING = ("max_length", "max_turns", "max_calls_per_turn", "allow_control_tokens")


# What joins depend on, though the same prompt may come of it.
_JOINING = {"chat_template": "another chat template", "tokenizer": "another tokenizer"}
_ORIGINS = {**_JOINING, "tools": "other tools", "messages": "other messages"}


def describe_run(
    seed: int, step: int, sampling: SamplingConfig, config: RolloutConfig, model: Model, version: int = 0
) -> dict[str, Any]:
    """Return by name what decides the tokens of a record, beside prompt, sample and tool outputs.

    Args:
      seed: of the run.
      step: of the training loop.
      sampling: how tokens are drawn.
      config: of the rollout.
      model: whose weights are told apart by a digest.
      version: of the weights; those of another version may be others.
    """
    limits = {name: getattr(config, name) for name in _DECIDING}
    # Nothing of the machine: under tensor parallelism a rank has its own number of heads.
    dtype = str(model.dtype).removeprefix("torch.")
    own = f"{model.name} ({model.vocab_size} ids, {len(model.cache_shapes)} layers, {dtype})"
    weights = f"version {version}, digest {digest_weights(model)}"
    identity = {"model": own, "weights": weights, "seed": seed, "step": step}
    return {**identity, **dataclasses.asdict(sampling), **limits}


def resume_flight(
    index: int,
    record: RolloutRecord,
    prompt: Sequence[int],
    key: list[int],
    budget: Budget,
    stop_ids: Collection[int],
    made_of: Mapping[str, str] | None = None,
) -> Flight:
    """Return the flight that goes on with a record. All that it needs is in the tape; the status is not read.

    Args:
      index: its place in the batch.
      record: unfinished.
      prompt: ids of its prompt as it is rendered now. A template that writes the date renders another one
        than the record begins with; the record's own stays.
      key: of its noise.
      budget: what it may take.
      stop_ids: that end a turn.
      made_of: digests of what `prompt` was rendered from.

    Raises:
      ValueError: naming the record, if it cannot be gone on with.
    """
    tape = _to_tape(record, budget)
    own = tape.tokens[: record.prompt_length]
    _check_origin(record, own == list(prompt), find_changes(record.rendered_from, made_of))
    turns, is_open = find_turns(tape.loss_mask), tape.loss_mask[-1]
    start = turns[-1][0] if is_open else len(tape.tokens)
    limit, reason = budget.limit(start, sum(tape.loss_mask[:start]))
    return Flight(
        index=index,
        record=record,
        prompt_ids=own,
        key=key,
        limit=limit,
        limit_reason=reason,
        turn_start=start,
        length=len(tape),
        num_sampled=sum(tape.loss_mask),
        num_turns=len(turns) - is_open,
        num_cut=record.num_tool_outputs_truncated,
        tool_calls=tuple(record.tool_calls),
        begun=tape,
        is_exact=record.is_exact,
        is_waiting=is_open and tape.tokens[-1] in stop_ids,
    )


def _check_origin(record: RolloutRecord, is_same: bool, changes: Sequence[str] | None) -> None:
    """Require that a record's prompt is made of what it was made of.

    Args:
      record: the record.
      is_same: whether its prompt is rendered to the same ids as then.
      changes: what has changed since, None if nobody knows.
    """
    found = [_ORIGINS[name] for name in changes or () if name in _JOINING or not is_same]
    if not is_same and changes is None:
        found = ["another tokenizer, chat template or tools"]
    if found:
        tokens = (
            "" if is_same else f" its first {record.prompt_length} tokens are not what its prompt is now;"
        )
        raise ValueError(
            f"{record.label} cannot be gone on with:{tokens} it was begun with {' and '.join(found)}"
        )


def check_single_turn(flight: Flight) -> None:
    """Require a record that no tool has answered.

    Raises:
      ValueError: naming the record; a rollout without turns would take the next one for its last.
    """
    if count := flight.num_turns:
        turns = f"{count} turn{'s' * (count > 1)}"
        raise ValueError(
            f"{flight.record.label} has {turns} that tools answered, and this rollout is single-turn; "
            f"give it the tools, or multi_turn=True"
        )


def _to_tape(record: RolloutRecord, budget: Budget) -> Tape:
    tape = to_tape(record, optional=() if budget.config.return_log_probs else ("log_probs",))
    if record.prompt_length is None:
        raise ValueError(f"{record.label} cannot be gone on with: it has no prompt_length")
    if len(tape) > budget.config.max_length:
        raise ValueError(
            f"{record.label} cannot be gone on with: it has {len(tape)} tokens, and max_length is "
            f"{budget.config.max_length}"
        )
    return tape
