"""Rollouts in one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from fnroll.config import RolloutConfig, SamplingConfig
from fnroll.dialogue.tool import ToolSet
from fnroll.models.base import Model
from fnroll.records.batch import RolloutBatch, RolloutRequest
from fnroll.records.prompt import Prompt, as_record
from fnroll.records.record import RolloutRecord
from fnroll.rollout.rollout import Rollout


def generate(
    model: nn.Module | Model,
    tokenizer: Any,
    prompts: Iterable[Prompt | RolloutRecord],
    *,
    max_length: int | None = None,
    n: int = 1,
    rows: int | None = None,
    seed: int = 0,
    step: int = 0,
    tools: ToolSet | Sequence[Any] = (),
    config: RolloutConfig | None = None,
    **sampling: Any,
) -> RolloutBatch:
    """Roll out prompts in one call.

    Args:
      model: a Hugging Face causal language model.
      tokenizer: of the model; None if all prompts are ids.
      prompts: strings (each one user message), message lists, id lists, or rows of a data set: dicts with
        `prompt`, `messages` or `prompt_ids`, whose other columns go into the metadata.
      max_length: tokens of a record, prompt and all; needed unless `config` says it.
      n: samples of each prompt.
      rows: records that decode at the same time; 16 unless `config` says it.
      seed: of the noise.
      step: of the training loop.
      tools: what the model may call.
      config: all of the configuration; `max_length` and `rows` must not contradict it.
      **sampling: fields of `SamplingConfig`: `temperature`, `top_k`, ...
    """
    # Of a dict, or of a table with columns, the names would be taken for prompts.
    is_table = isinstance(prompts, str | Mapping) or hasattr(prompts, "columns")
    if is_table or not isinstance(prompts, Iterable):
        raise ValueError(f"prompts is {prompts!r}; it must be a list of prompts")
    if config is None:
        if max_length is None:
            raise ValueError("generate needs max_length, or a config that holds it")
        config = RolloutConfig(max_length=max_length, rows=16 if rows is None else rows)
    for name, given in (("max_length", max_length), ("rows", rows)):
        if given is not None and given != getattr(config, name):
            raise ValueError(f"{name} is {given} and config.{name} is {getattr(config, name)}; give one")
    request = RolloutRequest([_to_record(place, prompt) for place, prompt in enumerate(prompts)], n)
    with Rollout(model, tokenizer, config, tools) as rollout:
        return rollout.generate(request, SamplingConfig(**sampling), seed=seed, step=step)


def _to_record(place: int, prompt: Prompt | RolloutRecord) -> RolloutRecord:
    try:
        return as_record(prompt)
    except ValueError as error:
        raise ValueError(f"prompts[{place}]: {error}") from error
