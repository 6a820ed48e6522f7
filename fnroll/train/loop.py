"""GRPO in one file: roll out, reward, advantages, loss, optimiser step. Copy it and change what you need.

What a step does is a function of the weights, the optimiser's moments and `(seed, step)`: tasks and noise
are drawn anew from those two numbers, no generator has a state. So a checkpoint is weights, moments and a
step, and a run that was stopped goes on exactly as it would have gone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fnroll
from fnroll import RolloutBatch, RolloutConfig, RolloutRecord, RolloutRequest
from fnroll.grpo import (
    combine_metrics,
    dynamic_filter,
    group_advantages,
    grpo_policy_loss,
    loss_denominator,
)
from fnroll.models.tiny import TINY_TOOLS, Task, make_tasks, reward
from fnroll.train.checkpoint import save_checkpoint

Metrics = dict[str, float]
_SPREAD = 1_000_003
"""Steps of a run before its tasks would be those of the next seed."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How the embedded model is trained."""

    seed: int = 0
    """Of tasks and noise."""
    steps: int = 30
    """Rollouts, each followed by `updates` optimiser steps."""
    prompts: int = 16
    """Tasks of a step."""
    n: int = 8
    """Samples of each task, its group."""
    updates: int = 2
    """Optimiser steps on one rollout, each on its share of the groups."""
    microbatch: int = 32
    """Records of one forward and backward."""
    learning_rate: float = 2e-4
    """Of AdamW."""
    clip_low: float = 0.2
    """PPO's lower bound."""
    clip_high: float = 0.28
    """PPO's upper bound, higher so that rare tokens can grow (DAPO)."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    eval_tasks: int = 256
    """Held-out tasks of an evaluation."""
    max_length: int = 224
    """Tokens of a trajectory."""
    max_turns: int = 5
    """Turns of a trajectory."""
    rows: int = 128
    """Records that decode at the same time."""


def summarise(batch: RolloutBatch) -> Metrics:
    """Return what a rewarded batch looks like, as means over its records."""
    count = len(batch)
    calls = [call for record in batch for call in record.tool_calls]
    return {
        "reward": sum(record.reward or 0.0 for record in batch) / count,
        "sampled_tokens": sum(record.num_sampled for record in batch) / count,
        "tool_calls": len(calls) / count,
        "bad_calls": sum(call["status"] != "ok" for call in calls) / max(1, len(calls)),
        "truncated": sum(record.status == "TRUNCATED" for record in batch) / count,
    }


class Trainer:
    """Trains a model with rewards. Also a context manager.

    Args:
      model: a Hugging Face causal language model; its weights are changed.
      tokenizer: of the model.
      config: see `TrainConfig`.
    """

    def __init__(self, model: nn.Module, tokenizer: Any, config: TrainConfig) -> None:
        self.model, self.config, self.step = model, config, 0
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            model.parameters(), lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
        )
        rollout_config = RolloutConfig(
            max_length=config.max_length, rows=config.rows, max_turns=config.max_turns,
            progress=False, wait_for_tools=True,
        )  # fmt: skip
        self.rollout = fnroll.Rollout(model, tokenizer, rollout_config, TINY_TOOLS)
        self.sampling = fnroll.SamplingConfig()

    def _roll_out(self, tasks: Sequence[Task], n: int, step: int) -> RolloutBatch:
        prompts = [RolloutRecord(messages=task.messages, metadata=task.metadata) for task in tasks]
        batch = self.rollout.generate(
            RolloutRequest(prompts, n), self.sampling, seed=self.config.seed, step=step
        )
        return RolloutBatch(tuple(record.replace(reward=reward(record)) for record in batch))

    def evaluate(self) -> tuple[float, RolloutBatch]:
        """Return mean reward and records of held-out tasks: each time the same ones, with the same noise."""
        batch = self._roll_out(make_tasks(self.config.eval_tasks, split="held-out"), 1, step=0)
        return summarise(batch)["reward"], batch

    def train_step(self) -> Metrics:
        """Roll out, learn from it, and return metrics."""
        config, step = self.config, self.step + 1
        started = time.perf_counter()
        tasks = make_tasks(config.prompts, seed=config.seed * _SPREAD + step)
        batch = self._roll_out(tasks, config.n, step)
        rolled = time.perf_counter()
        learned = self._learn(batch)
        self.step = step
        self.rollout.sync_weights(step)
        rollout_s = rolled - started
        return {
            "step": step,
            **summarise(batch),
            **learned,
            "tokens_per_s": sum(record.num_sampled for record in batch) / rollout_s,
            "rollout_s": rollout_s,
            "seconds": time.perf_counter() - started,
        }

    def _learn(self, batch: RolloutBatch) -> Metrics:
        """Take optimiser steps, each on its own groups; groups of equal rewards teach nothing."""
        telling = dynamic_filter([r.reward for r in batch], [r.group for r in batch]).tolist()
        records = [record for record, keep in zip(batch, telling, strict=True) if keep]
        num_groups = len(records) // self.config.n
        learned = {"telling_groups": num_groups / self.config.prompts}
        share = -(-num_groups // self.config.updates) * self.config.n
        parts = [self._update(records[at : at + share]) for at in range(0, len(records), max(1, share))]
        for name in parts[0] if parts else ():
            learned[name] = sum(part[name] for part in parts) / len(parts)
        return learned

    def _update(self, records: Sequence[RolloutRecord]) -> Metrics:
        config = self.config
        # Records of like length share a microbatch, so that little is padding.
        records = sorted(records, key=lambda record: len(record.tokens or ()))
        advantages = group_advantages([r.reward for r in records], [r.group for r in records])
        cuts = [slice(at, at + config.microbatch) for at in range(0, len(records), config.microbatch)]
        # Advantages are of whole groups, which a microbatch may cut; the tensors carry none of their own.
        parts = [fnroll.to_training([record.replace(reward=None) for record in records[cut]]) for cut in cuts]
        denominator, found = loss_denominator(*(part.loss_mask for part in parts)), []
        self.optimizer.zero_grad()
        for cut, part in zip(cuts, parts, strict=True):
            loss, metrics = grpo_policy_loss(
                fnroll.score(self.model, part, self.sampling),
                part.old_log_probs,
                advantages[cut],
                part.loss_mask,
                clip_low=config.clip_low,
                clip_high=config.clip_high,
                denominator=denominator,
            )
            torch.autograd.backward(loss)
            found.append(metrics)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.max_grad_norm)
        self.optimizer.step()
        total = combine_metrics(found)
        return {
            "loss": total.policy_loss.item(),
            "kl": total.kl_old.item(),
            "clipped": (total.clip_low + total.clip_high).item(),
            "grad_norm": norm.item(),
        }

    def run(self, out: Path | None = None, on_step: Callable[[Metrics], None] | None = None) -> None:
        """Train up to `config.steps`; with `out`, append metrics and write a checkpoint after each step."""
        while self.step < self.config.steps:
            metrics = self.train_step()
            if out is not None:
                with (out / "metrics.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps(metrics) + "\n")
                save_checkpoint(self, out / "checkpoint.pt")
            if on_step is not None:
                on_step(metrics)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.rollout.shutdown()
