"""Whether model, tokenizer, tools and configuration fit together, and what follows from them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from fnroll.config import RolloutConfig
from fnroll.dialogue.chat import Chat, init_chat
from fnroll.dialogue.parsers import Parser, detect_parser, get_parser
from fnroll.dialogue.tool import ToolSet
from fnroll.models.base import Model

_DEFAULT_PARSER = "hermes"


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
        multi_turn=multi_turn,
    )
    if multi_turn and "tool" in chat.rewrites_after:
        warnings.warn(
            "the chat template rewrites a turn once a tool message follows it; records keep what was "
            "sampled, so their text differs from the template's (record.is_exact is False)",
            stacklevel=3,
        )
    return chat


def find_parser(tokenizer: Any, tools: ToolSet, config: RolloutConfig) -> Parser:
    """Return the parser of tool calls that the configuration names, or the one of the chat template."""
    name = config.tool_call_parser
    if name == "auto":
        template = tokenizer.get_chat_template(tools=tools.schemas or None)
        name = detect_parser(str(template)) or _DEFAULT_PARSER
    return get_parser(name)
