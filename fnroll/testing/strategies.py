"""Hypothesis strategies for rollouts and their schedules."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from fnroll.config import RolloutConfig, SamplingConfig


@dataclass(frozen=True)
class Work:
    """What is rolled out; it decides the records."""

    prompts: tuple[tuple[int, ...], ...]
    n: int
    sampling: SamplingConfig
    max_length: int
    seed: int
    step: int
    stop_ids: tuple[int, ...] = (2,)


@dataclass(frozen=True)
class Schedule:
    """How it is run; it must decide nothing."""

    rows: int
    batching: str
    poll_every: int
    order: tuple[int, ...]
    """The order in which the prompts are handed over."""
    split: int
    """Prompts before this place go into a call of their own."""
    share_prefixes: bool = True

    def config(self, max_length: int, backend: str = "eager") -> RolloutConfig:
        """Return the configuration of a rollout that runs by this schedule."""
        return RolloutConfig(
            max_length=max_length,
            rows=self.rows,
            batching=self.batching,  # type: ignore[arg-type]
            poll_every=self.poll_every,
            share_prefixes=self.share_prefixes,
            backend=backend,  # type: ignore[arg-type]
            progress=False,
        )


@st.composite
def prompts(draw: st.DrawFn, vocab_size: int, most: int = 6, longest: int = 9) -> tuple[tuple[int, ...], ...]:
    """Draw one to `most` prompts of one to `longest` ids, some of which begin alike."""
    ids = st.integers(0, vocab_size - 1)
    prefix = tuple(draw(st.lists(ids, max_size=longest - 1)))
    alike = st.lists(ids, min_size=1, max_size=longest - len(prefix)).map(lambda rest: (*prefix, *rest))
    apart = st.lists(ids, min_size=1, max_size=longest).map(tuple)
    return tuple(draw(st.lists(alike | apart, min_size=1, max_size=most)))


def samplings() -> st.SearchStrategy[SamplingConfig]:
    """Draw sampling configurations: greedy, plain, cut by top-k and top-p, penalised, with budgets."""
    return st.builds(
        SamplingConfig,
        temperature=st.sampled_from([0.0, 0.6, 1.0, 1.0, 1.7]),
        top_k=st.sampled_from([0, 1, 5, 1000]),
        top_p=st.sampled_from([0.3, 0.8, 1.0]),
        repetition_penalty=st.sampled_from([1.0, 1.3]),
        max_new_tokens=st.none() | st.integers(1, 12),
        max_new_tokens_per_turn=st.none() | st.integers(1, 12),
    )


@st.composite
def works(draw: st.DrawFn, vocab_size: int, max_length: int = 20) -> Work:
    """Draw what to roll out."""
    return Work(
        prompts=draw(prompts(vocab_size)),
        n=draw(st.integers(1, 3)),
        sampling=draw(samplings()),
        max_length=max_length,
        seed=draw(st.integers(0, 2**64 - 1)),
        step=draw(st.integers(0, 5)),
        stop_ids=draw(st.lists(st.integers(0, vocab_size - 1), min_size=1, max_size=3).map(tuple)),
    )


@st.composite
def schedules(draw: st.DrawFn, count: int) -> Schedule:
    """Draw a way to run `count` prompts."""
    return Schedule(
        rows=draw(st.sampled_from([1, 2, 3, 5, 8])),
        batching=draw(st.sampled_from(["continuous", "static"])),
        poll_every=draw(st.sampled_from([1, 2, 5])),
        order=tuple(draw(st.permutations(range(count)))),
        split=draw(st.integers(0, count)),
        share_prefixes=draw(st.sampled_from([True, True, False])),
    )
