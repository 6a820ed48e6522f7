"""Continuous batching of transformers, the machinery behind `model.generate_batch()`."""

from __future__ import annotations

import time
from typing import Any

from transformers import ContinuousBatchingConfig, GenerationConfig

from fnroll.bench.engine import EngineError, EngineRun, Subject
from fnroll.bench.workload import Ids, Workload

_PAGE = 32
_BATCH_TOKENS = 512
_PATIENCE_S = 120.0


class GenerateBatchEngine:
    """`model.generate_batch()` with its manager kept between rounds, as a trainer would keep it.

    Its pool of pages is as large as the workload needs: by default it takes most of the free memory, and
    that takes longer than the work itself.
    """

    def __init__(self, subject: Subject, work: Workload) -> None:
        if subject.module is None:
            raise EngineError("generate_batch() needs a Hugging Face model, and this workload runs a toy")
        if work.turns > 1:
            raise EngineError("generate_batch() has no turns; the peer of this workload is generate()")
        self.work, self.stop_ids = work, subject.stop_ids if work.has_stops else (subject.vocab_size,)
        self.module = subject.module
        config = GenerationConfig(
            max_new_tokens=work.max_new_tokens,
            do_sample=False,
            eos_token_id=list(self.stop_ids),
            pad_token_id=subject.stop_ids[0],
            repetition_penalty=1.0,
        )
        paging = ContinuousBatchingConfig(
            page_size=_PAGE,
            num_blocks=2 * work.rows * -(-work.max_length // _PAGE),
            max_batch_tokens=_BATCH_TOKENS,
            max_requests_per_batch=work.rows,
        )
        self.manager: Any = subject.module.init_continuous_batching(
            generation_config=config, continuous_batching_config=paging
        )
        self.manager.warmup()

    def __call__(self) -> EngineRun:
        """Generate all answers; the threads are started before the clock is, and stopped after it."""
        prompts = self.work.expanded
        self.manager.start()
        try:
            start = time.perf_counter()
            answers = self._generate(prompts)
            seconds = time.perf_counter() - start
        finally:
            self.manager.stop(block=True, timeout=10, keep_for_next_session=True)
        records = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
        return EngineRun(seconds=seconds, tokens=sum(map(len, answers)), records=tuple(records))

    def _generate(self, prompts: list[Ids]) -> list[Ids]:
        names = self.manager.add_requests(
            [list(prompt) for prompt in prompts], max_new_tokens=self.work.max_new_tokens
        )
        answers: dict[str, Ids] = {}
        limit = time.monotonic() + _PATIENCE_S
        while len(answers) < len(names):
            result = self.manager.get_result(timeout=1)
            if result is not None and result.error is not None:
                raise EngineError(f"generate_batch() failed: {result.error}")
            if result is not None and result.is_finished():
                answers[result.request_id] = tuple(result.generated_tokens)
                limit = time.monotonic() + _PATIENCE_S
            elif result is None and (not self.manager.is_running() or time.monotonic() > limit):
                raise EngineError("generate_batch() ended without answers; its log says why")
        return [answers[name] for name in names]

    def close(self) -> None:
        """Give the pages back; the model keeps no trace."""
        self.manager.destroy()
        vars(self.module).pop("_cached_continuous_batching_manager", None)
