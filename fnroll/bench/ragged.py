"""W2: real questions with answers of unequal length, greedy, on real weights.

fnroll's continuous batching against a loop of `generate()` over batches, in one run. Greedy, so that both
engines must give the same answers, which is checked; the lengths are those the model chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fnroll.bench.measure import Sample, interleave
from fnroll.shell.batch import RolloutRequest
from fnroll.shell.config import RolloutConfig, SamplingConfig
from fnroll.shell.record import RolloutRecord
from fnroll.shell.rollout import Rollout

_WAYS = ("", " Answer in one word.", " Answer in one sentence.", " Explain step by step.")


@dataclass(frozen=True)
class Ragged:
    """The workload: prompts as ids, and how they are run."""

    prompts: tuple[tuple[int, ...], ...]
    rows: int = 16
    max_new_tokens: int = 128

    @property
    def max_length(self) -> int:
        """T: room for the longest prompt and its answer."""
        return max(map(len, self.prompts)) + self.max_new_tokens


def make_ragged(tokenizer: Any, questions: Sequence[str], *, count: int = 64, **options: int) -> Ragged:
    """Return `count` prompts: each question asked for a word, a sentence, an explanation, or plainly."""
    texts = [question + way for question in questions for way in _WAYS][:count]
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in texts
    ]
    return Ragged(tuple(map(tuple, prompts)), **options)


class FnrollEngine:
    """fnroll, continuous batching."""

    def __init__(self, model: Any, work: Ragged, backend: str = "eager") -> None:
        config = RolloutConfig(
            max_length=work.max_length,
            rows=work.rows,
            backend=backend,  # type: ignore[arg-type]
            progress=False,
        )
        self.work, self.rollout = work, Rollout(model, None, config)
        self.answers: list[tuple[int, ...]] = []

    def __call__(self) -> int:
        """Roll out the workload; return the number of sampled tokens."""
        records = [RolloutRecord(prompt_ids=prompt) for prompt in self.work.prompts]
        sampling = SamplingConfig(temperature=0.0, max_new_tokens=self.work.max_new_tokens)
        batch = self.rollout.generate(RolloutRequest(records), sampling)
        self.answers = [record.response_ids for record in batch]
        return sum(record.num_sampled for record in batch)


class GenerateEngine:
    """`model.generate()` over batches, left-padded, as trainers do today."""

    def __init__(self, model: Any, work: Ragged) -> None:
        self.model, self.work = model, work
        eos = model.generation_config.eos_token_id
        self.stop_ids = set(eos if isinstance(eos, list) else [eos])
        self.answers: list[tuple[int, ...]] = []

    def __call__(self) -> int:
        """Generate all answers; return the number of sampled tokens, each answer up to its stop token."""
        self.answers = []
        for start in range(0, len(self.work.prompts), self.work.rows):
            self._generate(self.work.prompts[start : start + self.work.rows])
        return sum(map(len, self.answers))

    def _generate(self, prompts: Sequence[tuple[int, ...]]) -> None:
        width, pad = max(map(len, prompts)), min(self.stop_ids)
        ids = torch.tensor([[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        with torch.no_grad():
            out = self.model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=self.work.max_new_tokens,
                do_sample=False,
                pad_token_id=pad,
            )
        self.answers.extend(self._trim(row) for row in out[:, width:].tolist())

    def _trim(self, answer: list[int]) -> tuple[int, ...]:
        end = next((place + 1 for place, token in enumerate(answer) if token in self.stop_ids), len(answer))
        return tuple(answer[:end])


@dataclass(frozen=True)
class RaggedResult:
    """What was measured."""

    samples: dict[str, Sample]
    same_answers: float
    """Share of answers that are token for token those of `generate()`."""
    mean_live_rows: float


def run_ragged(
    model: Any, work: Ragged, rounds: int, say: Callable[[str], None], backends: Sequence[str] = ("eager",)
) -> RaggedResult:
    """Measure fnroll and `generate()` on the workload, interleaved."""
    ours = {f"fnroll-{backend}": FnrollEngine(model, work, backend) for backend in backends}
    peer = GenerateEngine(model, work)
    samples = interleave({**ours, "generate": peer}, rounds, say)
    first = next(iter(ours.values()))
    same = [a == b for engine in ours.values() for a, b in zip(engine.answers, peer.answers, strict=True)]
    return RaggedResult(samples, sum(same) / len(same), first.rollout.profile.mean_live_rows)
