"""What an engine is to the benchmark, and fnroll as one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from fnroll.bench.turns import PARSER, end_turns_every, register_turn_parser
from fnroll.bench.workload import Ids, Workload
from fnroll.config import RolloutConfig, SamplingConfig
from fnroll.models.base import Model
from fnroll.models.causal_lm import causal_lm
from fnroll.records.batch import RolloutRequest
from fnroll.records.record import RolloutRecord
from fnroll.rollout.driver.profile import Profile
from fnroll.rollout.rollout import Rollout


@dataclass(frozen=True)
class EngineRun:
    """What one engine did in one round."""

    seconds: float
    """Wall time."""
    tokens: int
    """Sampled tokens."""
    records: tuple[Ids, ...] = ()
    """Prompt, answers and tool outputs of each record, in order."""
    decode_s: float | None = None
    """Wall time less prefill and waiting for tools; None if that cannot be told."""
    decode_tokens: int = 0
    """Tokens sampled in that time."""
    fed: int | None = None
    """Tokens the model was fed; None if that cannot be told."""
    padded: int = 0
    """Columns computed for nothing."""
    steps: int = 0
    """Decode steps."""
    host_share: float | None = None
    """Share of the wall time outside the model."""


class Engine(Protocol):
    """Runs one workload again and again."""

    def __call__(self) -> EngineRun:
        """Do the whole work once."""

    def close(self) -> None:
        """Give back what the engine holds."""


@dataclass(frozen=True)
class Subject:
    """The model that all engines run."""

    module: Any
    """A Hugging Face causal language model; None for a toy."""
    tokenizer: Any = None
    toy: Model | None = None

    @property
    def dtype(self) -> str:
        """Of the weights, without `torch.`."""
        dtype = self.toy.dtype if self.toy is not None else self.module.dtype
        return str(dtype).removeprefix("torch.")

    @property
    def vocab_size(self) -> int:
        """V."""
        return int(self.toy.vocab_size if self.toy is not None else self.module.config.vocab_size)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a turn, by the model's generation configuration."""
        eos = self.module.generation_config.eos_token_id
        return tuple(eos) if isinstance(eos, list | tuple) else (int(eos),)


class EngineError(RuntimeError):
    """An engine that cannot run a workload; the message says why, and becomes a row."""


def _make_model(subject: Subject, work: Workload) -> Model:
    if subject.toy is not None:
        return subject.toy
    model = causal_lm(subject.module)
    if work.turns > 1:
        return end_turns_every(model, work.max_new_tokens, subject.stop_ids)
    # An id that no logit belongs to: nothing ends an answer but its length.
    return replace(model, stop_ids=subject.stop_ids if work.has_stops else (subject.vocab_size,))


def lookup_tool(work: Workload) -> Callable[..., Any]:
    """Return the tool of a workload: it answers after the workload's latency."""

    async def lookup(query: str) -> str:
        """Look up a page in the handbook.

        Args:
          query: what to look for.
        """
        if work.latency_s:
            await asyncio.sleep(work.latency_s)
        return work.page(query).text

    return lookup


class FnrollEngine:
    """fnroll, continuous or static batching."""

    def __init__(
        self, subject: Subject, work: Workload, backend: str = "eager", *, batching: str = "continuous"
    ) -> None:
        if backend == "captured" and not torch.cuda.is_available():
            raise EngineError("a captured step needs CUDA; use fnroll-compiled on this machine")
        options: dict[str, Any] = {"backend": backend, "batching": batching, "poll_every": work.poll_every}
        is_spoken = work.turns > 1
        if is_spoken:
            register_turn_parser()
            options |= {"tool_call_parser": PARSER, "max_turns": work.turns}
            options |= {"max_concurrent_tools": len(work.expanded)}
        config = RolloutConfig(max_length=work.max_length, rows=work.rows, progress=False, **options)
        tokenizer = subject.tokenizer if is_spoken else None
        tools = [lookup_tool(work)] if is_spoken else []
        self.work, self.rollout = work, Rollout(_make_model(subject, work), tokenizer, config, tools)
        self.sampling = SamplingConfig(
            temperature=work.temperature,
            max_new_tokens=None if is_spoken else work.max_new_tokens,
            repetition_penalty=1.0,
        )

    def warm_up(self) -> None:
        """Compile all graphs ahead, where the rollout can."""
        warm_up = getattr(self.rollout, "warm_up", None)
        if warm_up is not None:
            warm_up(self.sampling)

    def __call__(self) -> EngineRun:
        """Roll out the workload once."""
        if self.work.messages:
            records = [RolloutRecord(messages=list(said)) for said in self.work.messages]
        else:
            records = [RolloutRecord(prompt_ids=prompt) for prompt in self.work.prompts]
        batch = self.rollout.generate(RolloutRequest(records, self.work.n), self.sampling)
        return _outcome(self.rollout.profile, tuple(tuple(record.tokens or ()) for record in batch))

    def close(self) -> None:
        """Release cache and graphs."""
        self.rollout.shutdown()


def _outcome(profile: Profile, records: tuple[Ids, ...]) -> EngineRun:
    stages = profile.seconds
    prefill, decode = stages.get("prefill", 0.0), stages.get("decode", 0.0)
    return EngineRun(
        seconds=profile.wall_s,
        tokens=profile.tokens,
        records=records,
        decode_s=profile.wall_s - prefill - stages.get("tools", 0.0),
        decode_tokens=profile.tokens,
        fed=profile.fed_tokens,
        padded=profile.padded_tokens,
        steps=profile.steps,
        host_share=1 - (prefill + decode) / profile.wall_s,
    )
