"""From an unfinished record back to a flight, and whether this call may go on with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

from fnroll.config import RolloutConfig, SamplingConfig
from fnroll.models.base import Model
from fnroll.models.weights import digest_weights
from fnroll.records.record import RolloutRecord
from fnroll.records.turns import find_turns
from fnroll.rollout.flight.budget import Budget
from fnroll.rollout.flight.flight import Flight
from fnroll.rollout.flight.tape import Tape, to_tape

# Fields of `RolloutConfig` that decide a record; all others are about how it is run.
_DECIDING = ("max_length", "max_turns", "max_calls_per_turn", "allow_control_tokens")


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
) -> Flight:
    """Return the flight that goes on with a record. All that it needs is in the tape; the status is not read.

    Raises:
      ValueError: naming the record, if it cannot be gone on with.
    """
    tape = _to_tape(record, budget)
    if tape.tokens[: record.prompt_length] != list(prompt):
        raise ValueError(
            f"{record.label} cannot be gone on with: its first {record.prompt_length} tokens are not what "
            f"its prompt is now; it was begun with another tokenizer, chat template or tools"
        )
    turns, is_open = find_turns(tape.loss_mask), tape.loss_mask[-1]
    start = turns[-1][0] if is_open else len(tape.tokens)
    limit, reason = budget.limit(start, sum(tape.loss_mask[:start]))
    return Flight(
        index=index,
        record=record,
        prompt_ids=list(prompt),
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
