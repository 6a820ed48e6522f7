"""`model.generate()` over left-padded batches, as trainers roll out today."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fnroll.bench.engine import EngineError, EngineRun, Subject
from fnroll.bench.workload import Ids, Workload
from fnroll.dialogue.chat import init_chat

_CACHES: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "static": {"cache_implementation": "static", "disable_compile": True},
}


class _FirstToken:
    """A stopping criterion that never stops; it notes when the first token was there."""

    def __init__(self) -> None:
        self.at: float | None = None

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        if self.at is None:
            self.at = time.perf_counter()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


@dataclass
class Counts:
    """What one round has fed and sampled."""

    sampled: int = 0
    fed: int = 0
    columns: int = 0
    """Columns computed, those for nothing included."""
    steps: int = 0
    first: int = 0
    """Tokens that a prefill sampled."""
    decode_s: float = 0.0

    def add(self, prompts: Sequence[Ids], answers: Sequence[Ids], steps: int) -> None:
        """Count a batch of `steps` tokens a row; the last token is never fed."""
        self.sampled += sum(map(len, answers))
        self.fed += sum(map(len, prompts)) + sum(map(len, answers)) - len(answers)
        self.columns += len(prompts) * (max(map(len, prompts)) + steps - 1)
        self.steps += steps - 1
        self.first += len(prompts)

    def outcome(self, seconds: float, records: Sequence[Ids], decode_s: float | None) -> EngineRun:
        """Return the round's outcome."""
        return EngineRun(
            seconds=seconds,
            tokens=self.sampled,
            records=tuple(records),
            decode_s=decode_s,
            decode_tokens=self.sampled - self.first if decode_s else 0,
            fed=self.fed,
            padded=self.columns - self.fed,
            steps=self.steps,
        )


def pad_left(prompts: Sequence[Ids], pad: int, device: Any) -> tuple[Tensor, Tensor]:
    """Return ids and attention mask, `[B, P]` each."""
    width = max(map(len, prompts))
    ids = [[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def trim(answer: Sequence[int], stop_ids: Collection[int]) -> Ids:
    """Return an answer up to its first stop id."""
    end = next((place + 1 for place, token in enumerate(answer) if token in stop_ids), len(answer))
    return tuple(answer[:end])


class GenerateEngine:
    """`model.generate()` over batches; several turns are a loop of it that feeds whole records again."""

    def __init__(self, subject: Subject, work: Workload, cache: str = "dynamic") -> None:
        if subject.module is None:
            raise EngineError("generate() needs a Hugging Face model, and this workload runs a toy")
        self.module, self.work, stop = subject.module, work, subject.stop_ids
        self.stop_ids = stop if work.has_stops or work.turns > 1 else (subject.vocab_size,)
        self.options: dict[str, Any] = {
            "max_new_tokens": work.max_new_tokens,
            "do_sample": False,
            "eos_token_id": list(self.stop_ids),
            "pad_token_id": stop[0],
            "repetition_penalty": 1.0,
            **_CACHES[cache],
        }
        if work.turns > 1:
            self.chat = init_chat(subject.tokenizer, stop_ids=stop)
            self.options |= {"min_new_tokens": work.max_new_tokens, "forced_eos_token_id": stop[0]}
        self.counts = Counts()

    def __call__(self) -> EngineRun:
        """Generate all answers, batch after batch."""
        records: list[Ids] = []
        self.counts, prompts = Counts(), self.work.expanded
        start = time.perf_counter()
        for place in range(0, len(prompts), self.work.rows):
            records += self._converse(prompts[place : place + self.work.rows])
        return self.counts.outcome(time.perf_counter() - start, records, self.counts.decode_s)

    def close(self) -> None:
        """Drop the static cache that the model keeps between calls."""
        vars(self.module).pop("_cache", None)

    def _converse(self, records: list[Ids]) -> list[Ids]:
        """Play all turns of a batch, all tools of a turn at the same time."""
        for turn in range(self.work.turns):
            answers = self._generate(records)
            records = [record + answer for record, answer in zip(records, answers, strict=True)]
            if turn < self.work.turns - 1:
                time.sleep(self.work.latency_s)
                pages = [self.work.page(self.chat.turn_text(answer)).ids for answer in answers]
                records = [record + page for record, page in zip(records, pages, strict=True)]
        return records

    def _generate(self, prompts: Sequence[Ids]) -> list[Ids]:
        first = _FirstToken()
        ids, mask = pad_left(prompts, self.options["pad_token_id"], self.module.device)
        with torch.no_grad():
            out = self.module.generate(ids, attention_mask=mask, stopping_criteria=[first], **self.options)
        answers = out[:, ids.shape[1] :].tolist()
        self.counts.decode_s += time.perf_counter() - (first.at or 0.0)
        trimmed = [trim(answer, self.stop_ids) for answer in answers]
        self.counts.add(prompts, trimmed, len(answers[0]))
        return trimmed
