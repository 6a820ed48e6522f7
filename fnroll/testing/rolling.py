"""Roll out work by a schedule, and say what the oracle makes of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from fnroll.config import SamplingConfig
from fnroll.models.base import Model
from fnroll.records.batch import RolloutRequest
from fnroll.records.record import RolloutRecord
from fnroll.rollout.rollout import Rollout
from fnroll.testing.oracle import Forward, OracleRecord, OracleSampling, roll_out
from fnroll.testing.strategies import Schedule, Work

Identity = tuple[int, int]
"""Prompt and sample."""


def run_work(
    model: Model, work: Work, schedule: Schedule, backend: str = "eager"
) -> dict[Identity, RolloutRecord]:
    """Roll out `work` by `schedule`; return each record by its identity."""
    model, order = dataclasses.replace(model, stop_ids=work.stop_ids), schedule.order
    parts = [order[: schedule.split], order[schedule.split :]]
    with Rollout(model, None, schedule.config(work.max_length, backend)) as rollout:
        found = {}
        for part in parts:
            records = [RolloutRecord(prompt_ids=work.prompts[i], prompt_id=i, group=i) for i in part]
            batch = rollout.generate(
                RolloutRequest(records, work.n), work.sampling, seed=work.seed, step=work.step
            )
            found.update({(int(record.prompt_id or 0), int(record.sample or 0)): record for record in batch})
    return found


def _limit(prompt: Sequence[int], work: Work) -> int:
    config = work.sampling
    budgets = [config.max_new_tokens, config.max_new_tokens_per_turn]
    return min([work.max_length, *(len(prompt) + budget for budget in budgets if budget is not None)])


def to_oracle(config: SamplingConfig) -> OracleSampling:
    """Return the sampling parameters as the oracle takes them."""
    return OracleSampling(config.temperature, config.top_k, config.top_p, config.repetition_penalty or 1.0)


def run_oracle(forward: Forward, work: Work) -> Mapping[Identity, OracleRecord]:
    """Return what every record of `work` must be."""
    return {
        (index, sample): roll_out(
            forward,
            prompt,
            limit=_limit(prompt, work),
            stop_ids=work.stop_ids,
            sampling=to_oracle(work.sampling),
            seed=work.seed,
            step=work.step,
            prompt_id=index,
            sample=sample,
        )
        for index, prompt in enumerate(work.prompts)
        for sample in range(work.n)
    }
