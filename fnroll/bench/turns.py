"""Turns of a fixed number of tokens that all end in a tool call, whatever the model would say.

Every engine then does the same forwards of the same weights, and none depends on how well the model behaves.
A turn ends where the length of the record is a multiple of the turn's length: prompts and tool outputs are
made to be multiples too, so a position alone says whether a turn ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from fnroll.core.model import Chunk
from fnroll.core.output import ModelOutput
from fnroll.core.types import Cache
from fnroll.dialogue.message import ParsedTurn, ToolCall
from fnroll.dialogue.parsers import register_parser
from fnroll.models.base import Model

PARSER = "bench-every-turn"
_SURE = 1e4
"""Added to the logit of the stop id where a turn ends, taken from it elsewhere; exact in bfloat16's range."""


class EveryTurnParser:
    """Reads every turn as one call of `lookup` with the turn's text."""

    def parse(self, text: str, *, prefix: str, tools: Sequence[dict[str, Any]]) -> ParsedTurn:
        """Return the call."""
        call = ToolCall(name="lookup", arguments={"query": text}, span=(0, len(text)))
        return ParsedTurn(content="", reasoning=None, calls=(call,), errors=())


def register_turn_parser() -> None:
    """Make the parser known to `RolloutConfig.tool_call_parser` under the name `PARSER`."""
    register_parser(PARSER, EveryTurnParser())


def end_turns_every(model: Model, tokens: int, stop_ids: Sequence[int]) -> Model:
    """Return the model with turns that end where the record's length is a multiple of `tokens`, only there.

    Args:
      model: as it is.
      tokens: of a turn.
      stop_ids: ids that end a turn; the first one is what ends it.
    """
    bias = torch.zeros(model.vocab_size, device=model.device)
    bias[list(stop_ids)] = -_SURE
    end = torch.zeros_like(bias)
    end[stop_ids[0]] = _SURE

    def fn(params: Any, chunk: Chunk, cache: Cache) -> ModelOutput:
        output = model.fn(params, chunk, cache)
        length = chunk.positions[:, -1:] + 2  # with the token that is drawn now
        biases = torch.where(length % tokens == 0, end, bias).to(output.logits.dtype)
        return replace(output, logits=output.logits + biases)

    return replace(model, fn=fn, stop_ids=tuple(stop_ids))
