"""DeepSpeed's `HybridEngineRollout`, where DeepSpeed is installed."""

from __future__ import annotations

import importlib
import importlib.util
import time
from types import SimpleNamespace
from typing import Any

from fnroll.bench.engine import EngineError, Outcome, Subject
from fnroll.bench.peer import Counts, pad_left, trim
from fnroll.bench.workload import Ids, Workload


class HybridEngine:
    """DeepSpeed's static path: batches of left-padded prompts through `HybridEngineRollout.generate`.

    Its continuous path fails on transformers 5.24. The static path asks its engine for `module` and nothing
    else, so the engine here is only that: the same module with the same weights as every other engine runs.
    """

    def __init__(self, subject: Subject, work: Workload) -> None:
        if importlib.util.find_spec("deepspeed") is None:
            raise EngineError("deepspeed is not installed; pip install 'fnroll[deepspeed]'")
        if subject.module is None or work.turns > 1:
            raise EngineError("HybridEngineRollout runs Hugging Face models and single turns only")
        self.api: Any = importlib.import_module("deepspeed.runtime.rollout")
        self.subject, self.work = subject, work
        self.stop_ids = subject.stop_ids if work.has_stops else (subject.vocab_size,)
        self.rollout = self.api.HybridEngineRollout(SimpleNamespace(module=subject.module), subject.tokenizer)

    def __call__(self) -> Outcome:
        """Generate all answers, batch after batch."""
        prompts, counts, records = self.work.expanded, Counts(), list[Ids]()
        config, sampling = self.subject.module.generation_config, self._sampling()
        kept, config.eos_token_id = config.eos_token_id, list(self.stop_ids)
        try:
            start = time.perf_counter()
            for place in range(0, len(prompts), self.work.rows):
                records += self._generate(prompts[place : place + self.work.rows], sampling, counts)
            seconds = time.perf_counter() - start
        finally:
            config.eos_token_id = kept
        return counts.outcome(seconds, records, None)

    def close(self) -> None:
        """Nothing is held."""

    def _sampling(self) -> Any:
        return self.api.SamplingConfig(max_new_tokens=self.work.max_new_tokens, temperature=0.0)

    def _generate(self, prompts: list[Ids], sampling: Any, counts: Counts) -> list[Ids]:
        ids, mask = pad_left(prompts, self.subject.stop_ids[0], self.subject.module.device)
        request = self.api.RolloutRequest(prompt_ids=ids, prompt_attention_mask=mask)
        batch = self.rollout.generate(request, sampling)
        answers = batch.input_ids[:, ids.shape[1] :].tolist()
        trimmed = [trim(answer, self.stop_ids) for answer in answers]
        counts.add(prompts, trimmed, len(answers[0]))
        return [prompt + answer for prompt, answer in zip(prompts, trimmed, strict=True)]
