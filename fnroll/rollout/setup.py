"""Whether model, tokenizer, tools and configuration fit together, and what follows from them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from fnroll.compile.steps import LoweredSteps
from fnroll.config import RolloutConfig
from fnroll.dialogue.chat import Chat, init_chat
from fnroll.dialogue.parsers import Parser, detect_parser, get_parser
from fnroll.dialogue.tool import ToolSet
from fnroll.models.base import Model
from fnroll.models.causal_lm import causal_lm
from fnroll.models.weights import WeightWatch
from fnroll.rollout.flight.prompts import Prompts

_DEFAULT_PARSER = "hermes"


@dataclass(frozen=True, eq=False)
class Setup:
    """A model, a tokenizer, tools and a configuration that fit together, and what follows from them."""

    model: Model
    tokenizer: Any
    config: RolloutConfig
    tools: ToolSet
    stop_ids: Sequence[int]
    """Ids that end a turn."""
    multi_turn: bool
    """Whether turns are parsed and tools run."""
    chat: Chat | None
    """What renders conversations; None for a tokenizer without a chat template."""
    parser: Parser | None
    """Of tool calls; None in single-turn rollouts."""
    prompts: Prompts
    weights: WeightWatch

    @property
    def decode(self) -> Any:
        """From ids to text; None without a tokenizer."""
        return None if self.tokenizer is None else self.tokenizer.decode


def make_setup(
    model: nn.Module | Model, tokenizer: Any, config: RolloutConfig, tools: ToolSet | Sequence[Any]
) -> Setup:
    """Bring together what a rollout is made of.

    Raises:
      ValueError: if model, tokenizer, tools and configuration do not fit together; the message says how.
    """
    own: Model = model if isinstance(model, Model) else causal_lm(model)
    tools = tools if isinstance(tools, ToolSet) else ToolSet(tools)
    check_length(own, config)
    stop_ids = find_stop_ids(own, tokenizer)
    multi_turn = bool(len(tools)) if config.multi_turn is None else config.multi_turn
    chat = open_chat(tokenizer, tools, stop_ids, config, multi_turn=multi_turn)
    return Setup(
        model=own,
        tokenizer=tokenizer,
        config=config,
        tools=tools,
        stop_ids=stop_ids,
        multi_turn=multi_turn,
        chat=chat,
        parser=find_parser(tokenizer, tools, config) if multi_turn else None,
        prompts=Prompts(tokenizer, chat, own.vocab_size),
        weights=WeightWatch(own),
    )


def lower_steps(setup: Setup) -> LoweredSteps:
    """Return the steps of a configuration, lowered for its backend."""
    config = setup.config
    return LoweredSteps(
        setup.model,
        backend=config.backend,
        max_length=config.max_length,
        num_rows=config.rows,
        static=config.batching == "static",
        multi_turn=setup.multi_turn,
        front=config.returning == "front",
    )


def check_length(model: Model, config: RolloutConfig) -> None:
    """Require that the model has a position for every token of a record.

    Raises:
      ValueError: naming both numbers.
    """
    limit = model.max_positions
    if limit is not None and config.max_length > limit:
        raise ValueError(
            f"RolloutConfig.max_length is {config.max_length}; {model.name} has positions for at most "
            f"{limit} tokens"
        )


def find_stop_ids(model: Model, tokenizer: Any) -> list[int]:
    """Return the ids that end a turn, by the model's generation configuration and by the tokenizer.

    Raises:
      ValueError: if there are none.
    """
    if tokenizer is not None and tokenizer.eos_token_id is None and tokenizer.pad_token_id is None:
        raise ValueError(
            "the tokenizer has neither an EOS nor a pad token, so nothing says where a turn ends; set "
            "tokenizer.eos_token"
        )
    eos = getattr(tokenizer, "eos_token_id", None)
    stop_ids = sorted({*model.stop_ids, *([] if eos is None else [int(eos)])})
    if not stop_ids:
        raise ValueError(
            f"no stop id: neither the tokenizer nor the generation config of {model.name} has an EOS token; "
            f"set tokenizer.eos_token or model.generation_config.eos_token_id"
        )
    return stop_ids


def open_chat(
    tokenizer: Any, tools: ToolSet, stop_ids: Sequence[int], config: RolloutConfig, *, multi_turn: bool
) -> Chat | None:
    """Return what renders conversations; None for a tokenizer without a chat template.

    Raises:
      ValueError: if there are turns to join and no template.
    """
    if not getattr(tokenizer, "chat_template", None):
        if multi_turn:
            raise ValueError(
                "multi-turn rollouts need a tokenizer with a chat template, which writes what comes between "
                "turns"
            )
        return None
    chat = init_chat(
        tokenizer,
        tools.schemas,
        stop_ids=stop_ids,
        chat_template_kwargs=config.chat_template_kwargs,
        allow_control_tokens=config.allow_control_tokens,
        continue_final_message=config.continue_final_message,
        multi_turn=multi_turn,
    )
    if multi_turn and "tool" in chat.rewrites_after:
        warnings.warn(
            "the chat template rewrites a turn once a tool message follows it; records keep what was "
            "sampled, so their text differs from the template's (record.is_exact is False)",
            stacklevel=4,
        )
    return chat


def find_parser(tokenizer: Any, tools: ToolSet, config: RolloutConfig) -> Parser:
    """Return the parser of tool calls that the configuration names, or the one of the chat template."""
    name = config.tool_call_parser
    if name == "auto":
        template = tokenizer.get_chat_template(tools=tools.schemas or None)
        name = detect_parser(str(template)) or _DEFAULT_PARSER
    return get_parser(name)
