"""DeepSpeed's `HybridEngineRollout`, where DeepSpeed is installed."""

from __future__ import annotations

import importlib
import importlib.util
import time
from types import SimpleNamespace
from typing import Any

from fnroll.bench.engine import EngineError, EngineRun, Subject
from fnroll.bench.peer import Counts, pad_left, trim
from fnroll.bench.workload import Ids, Workload


def _mend_cache() -> None:
    """Give DeepSpeed's cache the one method that transformers 5.24 asks of a cache and that 0.19.8 lacks.

    Without it: `AttributeError: 'DeepSpeedStaticCache' object has no attribute 'get_query_offset'`. In
    `transformers.Cache` it returns `get_seq_length()`, and so it does here.
    """
    cache: Any = importlib.import_module("deepspeed.utils.static_cache").DeepSpeedStaticCache
    if not hasattr(cache, "get_query_offset"):
        cache.get_query_offset = cache.get_seq_length


class HybridEngine:
    """Left-padded prompts through `HybridEngineRollout.generate`, by its static or its continuous path.

    Both paths ask their engine for `module` and nothing else, and their tokenizer for two ids, so that is all
    they get: the same module with the same weights as every other engine runs. DeepSpeed stops no row of the
    static path before `max_new_tokens`, and cuts its answers afterwards. The continuous path gets all prompts
    at once and admits one wherever a row is free; transformers 5.24 needs `_mend_cache` for it.
    """

    def __init__(self, subject: Subject, work: Workload, *, is_continuous: bool = False) -> None:
        if importlib.util.find_spec("deepspeed") is None:
            raise EngineError("deepspeed is not installed; pip install 'fnroll[deepspeed]'")
        if subject.module is None or work.turns > 1:
            raise EngineError("HybridEngineRollout runs Hugging Face models and single turns only")
        self.api: Any = importlib.import_module("deepspeed.runtime.rollout")
        self.module, self.work, self.is_continuous = subject.module, work, is_continuous
        self.pad, self.stop_ids = subject.stop_ids[0], subject.stop_ids
        if not work.has_stops:
            self.stop_ids = (subject.vocab_size,)  # an id that no logit belongs to
        if is_continuous:
            _mend_cache()
        tokenizer = SimpleNamespace(pad_token_id=self.pad, eos_token_id=list(self.stop_ids))
        self.rollout = self.api.HybridEngineRollout(SimpleNamespace(module=self.module), tokenizer)
        self.sampling = self.api.SamplingConfig(
            max_new_tokens=work.max_new_tokens,
            temperature=0.0,
            continuous_batch_size=work.rows if is_continuous else None,
        )

    def __call__(self) -> EngineRun:
        """Generate all answers: batch after batch, or all in one continuous batch."""
        prompts, counts, records = self.work.expanded, Counts(), list[Ids]()
        size = len(prompts) if self.is_continuous else self.work.rows
        config = self.module.generation_config
        kept, config.repetition_penalty = config.repetition_penalty, 1.0
        try:
            start = time.perf_counter()
            for place in range(0, len(prompts), size):
                records += self._generate(prompts[place : place + size], counts)
            seconds = time.perf_counter() - start
        finally:
            config.repetition_penalty = kept
        return counts.outcome(seconds, records, None)

    def close(self) -> None:
        """Nothing is held."""

    def _generate(self, prompts: list[Ids], counts: Counts) -> list[Ids]:
        ids, mask = pad_left(prompts, self.pad, self.module.device)
        request = self.api.RolloutRequest(prompt_ids=ids, prompt_attention_mask=mask)
        batch = self.rollout.generate(request, self.sampling)
        answers = batch.input_ids[:, ids.shape[1] :].tolist()
        trimmed = [trim(answer, self.stop_ids) for answer in answers]
        counts.add(prompts, trimmed, len(answers[0]))
        if self.is_continuous:  # a row that has ended is fed no more; prompts are as wide as the widest
            counts.steps = self.rollout.get_last_continuous_stats()["decode_steps"]
            counts.columns = ids.numel() + counts.sampled - len(prompts)
        return [prompt + answer for prompt, answer in zip(prompts, trimmed, strict=True)]
