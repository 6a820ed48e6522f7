"""How much a record may take: tokens, turns, characters of tool output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fnroll.config import RolloutConfig, SamplingConfig
from fnroll.dialogue.cut import cut_output
from fnroll.dialogue.message import Outcome, ParseError
from fnroll.records.record import Reason


@dataclass(frozen=True)
class Budget:
    """The limits of one `generate` call."""

    config: RolloutConfig
    sampling: SamplingConfig

    @property
    def max_turns(self) -> int:
        """Turns of a record."""
        return self.config.max_turns

    def left(self, num_sampled: int) -> int | None:
        """Return how many tokens a record may still sample by `max_new_tokens`; None if it sets no bound."""
        bound = self.sampling.max_new_tokens
        return None if bound is None else max(bound - num_sampled, 0)

    def limit(self, length: int, num_sampled: int) -> tuple[int, Reason]:
        """Return the length at which a turn that starts at `length` must stop, and what a cut there means."""
        limit, left = self.config.max_length, self.left(num_sampled)
        if left is not None:
            limit = min(limit, length + left)
        turn = self.sampling.max_new_tokens_per_turn
        if turn is not None and length + turn < limit:
            return length + turn, Reason.TURN_LENGTH
        return limit, Reason.LENGTH

    def has_room(self, length: int) -> bool:
        """Whether anything can follow `length` tokens with a token to sample after it."""
        return length + 1 < self.config.max_length

    def limit_calls(self, outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
        """Return the calls of a turn that are answered, and one answer for all those that are too many."""
        most = self.config.max_calls_per_turn
        if most is None or len(outcomes) <= most:
            return tuple(outcomes)
        rest = outcomes[most:]
        text = f"Error: a turn may make at most {most} tool calls; the other {len(rest)} were not run."
        return (*outcomes[:most], ParseError(text, (rest[0].span[0], rest[-1].span[1])))

    def cut(self, text: str) -> tuple[str, bool]:
        """Return a tool output as the model reads it, and whether it was cut."""
        most = self.sampling.max_tool_output_chars
        return (text, False) if most is None else cut_output(text, most, self.sampling.tool_output_keep)
