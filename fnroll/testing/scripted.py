"""A model that says what a script says, so that a rollout of many turns can be written down beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fnroll.core.model import Chunk, read_layer, write_layer
from fnroll.core.output import ModelOutput
from fnroll.core.tree import replace
from fnroll.core.types import Cache
from fnroll.dialogue.chat import init_chat
from fnroll.models.base import Model

# By how many nats the next token of a script is likelier than any other: its log-prob rounds to 0.
_PEAK = 200.0
# Drawn where no script says anything: in the middle of a prompt, or after a turn that should have ended.
_FILLER = 0


@dataclass(frozen=True)
class Script:
    """What the model says after one prompt."""

    prompt: tuple[int, ...]
    """Ids; no prompt may begin another."""
    turns: tuple[tuple[int, ...], ...]
    """Ids of each turn, its stop id included."""


def next_token(scripts: Sequence[Script], header: Sequence[int], tokens: Sequence[int]) -> int:
    """Return the scripted token after `tokens`, a function of nothing else.

    The turn is the number of headers after the prompt; the place in it, the tokens since the last of them.

    Raises:
      LookupError: if a turn begins that the script does not have.
    """
    for script in scripts:
        start = len(script.prompt)
        if tuple(tokens[:start]) != script.prompt:
            continue
        turn = 0
        for at in range(start, len(tokens) - len(header) + 1):
            if tokens[at] == header[0] and list(tokens[at : at + len(header)]) == list(header):
                start, turn = at + len(header), turn + 1
        if turn >= len(script.turns):
            raise LookupError(f"the script has {len(script.turns)} turns, and the model begins one more")
        said, place = script.turns[turn], len(tokens) - start
        return said[place] if place < len(said) else _FILLER
    return _FILLER


def scripted(
    scripts: Sequence[Script], header: Sequence[int], *, vocab_size: int, stop_ids: Sequence[int]
) -> Model:
    """Return the model of some scripts. It reads its cache on the host: for eager runs only.

    Args:
      scripts: one for each prompt.
      header: ids that every turn but the first begins after.
      vocab_size: V.
      stop_ids: ids that end a turn.
    """

    def fn(params: Tensor, chunk: Chunk, cache: Cache) -> ModelOutput:
        keys = write_layer(cache.keys[0], chunk.tokens[:, :, None, None].to(params.dtype), chunk)
        seen = read_layer(keys, chunk)[:, :, 0, 0].long().tolist()
        lengths = (chunk.start + chunk.tokens.shape[1]).tolist()
        said = [
            next_token(scripts, header, tokens[:length]) for tokens, length in zip(seen, lengths, strict=True)
        ]
        logits = torch.nn.functional.one_hot(torch.tensor(said), vocab_size).to(params) * params
        return ModelOutput(logits=logits, cache=replace(cache, keys=(keys,)))

    return Model(
        fn=fn,
        params=torch.tensor(_PEAK, dtype=torch.float64),
        cache_shapes=((1, 1, 1),),
        vocab_size=vocab_size,
        dtype=torch.float64,
        stop_ids=tuple(stop_ids),
        name="scripted",
    )


Turn = str | Sequence[int]
"""Text, which the tokenizer's EOS ends unless another stop token stands at its end; or ids as they are."""


def scripted_model(
    tokenizer: Any,
    scripts: Mapping[str, Sequence[Turn]],
    *,
    stop_ids: Sequence[int] | None = None,
    **chat_template_kwargs: Any,
) -> Model:
    """Return a model that answers each user message by its script.

    Args:
      tokenizer: with a chat template that writes no tools.
      scripts: user message -> turns.
      stop_ids: ids that end a turn; None for the tokenizer's EOS.
      **chat_template_kwargs: as in the rollout's configuration.
    """
    chat = init_chat(tokenizer, stop_ids=stop_ids, chat_template_kwargs=chat_template_kwargs)
    stops = sorted(chat.stops)

    def encode(turn: Turn) -> tuple[int, ...]:
        if not isinstance(turn, str):
            return tuple(turn)
        ids = chat.encoder.encode(turn)
        return (*ids,) if ids and ids[-1] in stops else (*ids, int(tokenizer.eos_token_id))

    prompts = {message: chat.render_prompt([{"role": "user", "content": message}]) for message in scripts}
    made = [Script(prompts[message].ids, tuple(map(encode, turns))) for message, turns in scripts.items()]
    header = chat.encoder.encode(next(iter(prompts.values())).prefix)
    return scripted(made, header, vocab_size=len(tokenizer), stop_ids=stops)
