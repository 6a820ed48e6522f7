"""How well tools overlap with decoding: wall time against what decoding and tools must take."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from fnroll.config import RolloutConfig
from fnroll.core.model import Chunk, write_layer
from fnroll.core.output import ModelOutput
from fnroll.core.tree import replace as replace_tree
from fnroll.core.types import Cache
from fnroll.dialogue.chat import init_chat
from fnroll.models.base import Model
from fnroll.models.chatter import CHATTER_CALLS, chatter_model, chatter_tokenizer
from fnroll.records.batch import RolloutRequest
from fnroll.records.record import RolloutRecord
from fnroll.rollout.rollout import Rollout

_PROMPT = ({"role": "user", "content": "Add 1 and 2, again and again."},)
_TURNS = 3
Queue = Literal["front", "back"]
RETURNING: tuple[Queue, Queue] = ("front", "back")
TURN_TOKENS = (8, 400)
"""Tokens of a turn: so few that tools take most of the time, and so many that decoding does."""


def _script(tokenizer: Any, tokens_per_turn: int) -> Tensor:
    """Return the token at each position: turns of filler that end in a call, the last one without."""
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    chat = init_chat(tokenizer, tools)
    stop = tokenizer.convert_tokens_to_ids("<|im_end|>")
    call = tokenizer.convert_tokens_to_ids(CHATTER_CALLS[0])
    segment = chat.render_prompt(_PROMPT)
    tokens = list(segment.ids)
    filler = tokens[-2]
    for turn in range(_TURNS):
        sampled = [filler] * (tokens_per_turn - 2) + [call if turn < _TURNS - 1 else filler, stop]
        tokens += sampled
        if turn < _TURNS - 1:
            following = [{"role": "tool", "name": "add", "content": "3"}]
            segment = chat.continue_turn(segment.messages, sampled, following)
            tokens += segment.ids
    return torch.tensor(tokens)


def three_turn_model(tokens_per_turn: int) -> Model:
    """Return a toy that says the same three turns to everybody; the token depends on the position alone."""
    base, tokenizer = chatter_model(), chatter_tokenizer()
    script = _script(tokenizer, tokens_per_turn)

    def fn(params: Tensor, chunk: Chunk, cache: Cache) -> ModelOutput:
        keys = write_layer(cache.keys[0], chunk.tokens[:, :, None, None].double(), chunk)
        token = params[(chunk.positions[:, -1] + 1).clamp(max=len(params) - 1)]
        logits = torch.nn.functional.one_hot(token, base.vocab_size).double() * 100
        return ModelOutput(logits=logits, cache=replace_tree(cache, keys=(keys,)))

    return replace(base, fn=fn, params=script)


@dataclass(frozen=True)
class OverlapResult:
    """One tool latency, a round an entry."""

    tokens_per_turn: int
    returning: str
    """Where a returning turn queues, "front" or "back"."""
    latency_s: float
    walls: tuple[float, ...]
    """Wall time of the rollout in seconds."""
    decodes: tuple[float, ...]
    """What decoding alone took in the same round: the same rollout with tools that answer at once."""

    @property
    def tool_s(self) -> float:
        """What tools alone take: the calls of one trajectory, one after the other."""
        return (_TURNS - 1) * self.latency_s

    @property
    def ratio(self) -> float:
        """Wall time over the larger of the two bounds, median over the rounds."""
        pairs = zip(self.walls, self.decodes, strict=True)
        return statistics.median(wall / max(decode, self.tool_s) for wall, decode in pairs)

    @property
    def schedule_ratio(self) -> float:
        """Wall time over what no schedule can beat, median over the rounds.

        Rows are fewer than trajectories: the last one to begin calls its first tool only when all first
        turns are decoded, and its calls come on top.
        """
        pairs = zip(self.walls, self.decodes, strict=True)
        return statistics.median(wall / max(decode, decode / _TURNS + self.tool_s) for wall, decode in pairs)


def run_overlap(
    latencies: Sequence[float] = (0.0, 0.05, 0.2, 0.5, 1.0, 2.0),
    *,
    tokens_per_turn: int = TURN_TOKENS[-1],
    rows: int = 16,
    trajectories: int = 64,
    rounds: int = 3,
    say: Callable[[str], None] = lambda text: None,
) -> list[OverlapResult]:
    """Measure the wall time of 64 trajectories of three turns for each tool latency in seconds."""
    cases = [(queue, latency) for queue in RETURNING for latency in latencies]
    walls: dict[tuple[Queue, float], list[float]] = {case: [] for case in cases}
    bare = []
    model = three_turn_model(tokens_per_turn)
    _run(model, 0.0, rows, trajectories)
    for _ in range(rounds):
        bare.append(_run(model, 0.0, rows, trajectories))
        for queue, latency in cases:
            wall = _run(model, latency, rows, trajectories, queue)
            walls[queue, latency].append(wall)
            say(f"{tokens_per_turn} tokens a turn, {queue} of the queue, latency {latency:g} s: {wall:.2f} s")
    return [
        OverlapResult(tokens_per_turn, queue, latency, tuple(times), tuple(bare))
        for (queue, latency), times in walls.items()
    ]


def _run(
    model: Model, latency: float, rows: int, trajectories: int, returning: Queue = RETURNING[0]
) -> float:
    async def add(a: int, b: int) -> int:
        """Add two numbers.

        Args:
          a: the first.
          b: the second.
        """
        if latency:
            await asyncio.sleep(latency)
        return a + b

    config = RolloutConfig(
        max_length=len(model.params) + 1,
        rows=rows,
        progress=False,
        max_concurrent_tools=trajectories,
        returning=returning,
    )
    with Rollout(model, chatter_tokenizer(), config, [add]) as rollout:
        record = RolloutRecord(messages=_PROMPT)
        batch = rollout.generate(RolloutRequest([record], trajectories))
        assert all(record.num_turns == _TURNS for record in batch)
        return rollout.profile.wall_s
