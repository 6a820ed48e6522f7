"""How a rollout is run, and how its tokens are drawn."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from fnroll.checks import check_bool, check_choice, check_int, check_number, fail, parse_bytes

# What float32, in which tokens are drawn, can hold and divide by.
_MOST = 1e30


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How tokens are drawn and how many.

    Raises:
      ValueError: naming the field, its value and what is allowed.
    """

    temperature: float = 1.0
    """At least 0; 0 takes the most likely token and ignores `top_k` and `top_p`."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 is off, more than the vocabulary is the vocabulary."""
    top_p: float = 1.0
    """Keep the likeliest tokens that together hold this probability; in (0, 1]."""
    repetition_penalty: float | None = None
    """From 1e-30, 1 is off; None takes the value of the model's generation configuration."""
    max_new_tokens: int | None = None
    """Sampled tokens of a record over all its turns; None leaves it to `max_length`."""
    max_new_tokens_per_turn: int | None = None
    """Sampled tokens of one turn; None leaves it to the other limits."""
    max_tool_output_chars: int | None = None
    """Characters kept of one tool output; None keeps all."""
    tool_output_keep: Literal["start", "end", "both"] = "start"
    """Which end of a tool output survives the cut."""
    support_size: int = 0
    """Keep the ids that each token was drawn from, where `top_k` or `top_p` cut the vocabulary, and draw from
    at most so many; 0 keeps none. `fnroll.score` then gives an unchanged policy a ratio of 1."""

    @property
    def is_truncating(self) -> bool:
        """Whether tokens are drawn from less than the whole vocabulary."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1)

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_number(name, "temperature", self.temperature, least=0, most=_MOST)
        check_int(name, "top_k", self.top_k, least=0)
        check_number(name, "top_p", self.top_p, above=0, most=1)
        penalty = self.repetition_penalty
        check_number(name, "repetition_penalty", penalty, least=1 / _MOST, most=_MOST, optional=True)
        check_int(name, "max_new_tokens", self.max_new_tokens, least=1, optional=True)
        check_int(name, "max_new_tokens_per_turn", self.max_new_tokens_per_turn, least=1, optional=True)
        check_int(name, "max_tool_output_chars", self.max_tool_output_chars, least=0, optional=True)
        check_int(name, "support_size", self.support_size, least=0)
        check_choice(name, "tool_output_keep", self.tool_output_keep, ("start", "end", "both"))


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """How a rollout is run: its limits, its conversation, and the schedule, which changes no record.

    Raises:
      ValueError: naming the field, its value and what is allowed.
    """

    max_length: int
    """T: tokens of a record, prompt, responses and tool output together."""
    rows: int = 16
    """B: records that decode at the same time."""
    batching: Literal["continuous", "static"] = "continuous"
    """Fill a row within a few steps of when it is free, or all rows when all are free."""
    backend: Literal["eager", "compiled", "captured"] = "eager"
    """How steps run: as they are, compiled, or compiled and replayed as CUDA graphs."""
    multi_turn: bool | None = None
    """Parse turns and run tools; None does when there are tools."""
    max_turns: int = 16
    """Turns of a record; a tool wanted in the last one does not run."""
    tool_call_parser: str = "auto"
    """Name of a parser of `fnroll.dialogue.parsers`, or "auto": by the chat template."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Passed to the chat template, `enable_thinking` for example."""
    continue_final_message: bool = False
    """Go on with an assistant message that a prompt ends with; by default such a prompt is refused."""
    returning: Literal["front", "back"] = "front"
    """Where a turn that comes back from its tools queues. In front, few records are open and the first end
    early; at the back, no record begins so late that its tools have nothing to hide behind."""
    pool: int | str | None = None
    """Where the keys and values of turns wait for their tools: slots, each as large as a row, or a size such
    as "2GB"; 0 re-computes them. None is two slots for each row in multi-turn rollouts, else none."""
    share_prefixes: bool = True
    """Feed what records have in common (the samples of a prompt, a system prompt, tools) once and copy it."""
    reuse_cache: bool = False
    """Take keys and values that earlier calls left behind, too, even if the weights have changed since: a
    record that is gone on with under newer weights is then not fed again, and its log-probs are those of
    newer weights over older keys and values, which then depend on the schedule. New records take older
    prefixes as well, a system prompt for example, of whatever age; `shutdown` drops them. Off, each call
    begins with none."""
    poll_every: int = 1
    """Decode steps between two reads of the device; rows that end in between idle."""
    tool_timeout_s: float | None = 30.0
    """Seconds that one tool call may take; None waits for ever."""
    wait_for_tools: bool = False
    """Decode on only when every turn that has ended has its answers. What shares a forward, and so the last
    bits of log-probs, then does not depend on how long tools take: for training and replays that must repeat
    exactly."""
    max_concurrent_tools: int = 32
    """Tool calls that run at the same time."""
    max_calls_per_turn: int | None = 64
    """Tool calls of one turn; one answer tells the model that the others did not run. None runs all that
    the parser read."""
    return_log_probs: bool = True
    """Keep the log-probs in the records."""
    progress: bool | None = None
    """Show a progress bar on standard error; None shows it on a terminal."""
    allow_control_tokens: bool = False
    """Let control tokens spelled in a tool output become control tokens; by default they are plain text."""
    log: str | None = None
    """Path of the effect log: tool calls and their results as JSON Lines, appended; `{step}` is the step."""
    replay: str | None = None
    """Path of an effect log to answer all tool calls from; no tool is called then."""

    save: str | None = None
    """Path of a file that always holds all records as they last stood, to go on from after a crash; `{step}`
    is the step."""
    save_every: int = 100
    """Decode steps between two saves."""

    def __post_init__(self) -> None:
        check = functools.partial(check_int, type(self).__name__)
        name = type(self).__name__
        check("max_length", self.max_length, least=2)
        check("rows", self.rows, least=1)
        check_choice(name, "batching", self.batching, ("continuous", "static"))
        check_choice(name, "backend", self.backend, ("eager", "compiled", "captured"))
        if self.backend == "captured" and not torch.cuda.is_available():
            fail(name, "backend", "captured", "'compiled' (or 'eager') on a machine without a CUDA device")
        check_choice(name, "returning", self.returning, ("front", "back"))
        check_bool(name, "multi_turn", self.multi_turn, optional=True)
        check("max_turns", self.max_turns, least=1)
        if not isinstance(self.tool_call_parser, str) or not self.tool_call_parser:
            fail(name, "tool_call_parser", self.tool_call_parser, "the name of a parser, or 'auto'")
        if not isinstance(self.chat_template_kwargs, Mapping):
            fail(name, "chat_template_kwargs", self.chat_template_kwargs, "a mapping")
        check_bool(name, "continue_final_message", self.continue_final_message)
        check("poll_every", self.poll_every, least=1)
        check_bool(name, "share_prefixes", self.share_prefixes)
        check_bool(name, "reuse_cache", self.reuse_cache)
        if self.reuse_cache and not self.share_prefixes:
            fail(name, "reuse_cache", True, "False without share_prefixes, by which rows take over prefixes")
        check_bool(name, "wait_for_tools", self.wait_for_tools)
        if isinstance(self.pool, str):
            if parse_bytes(self.pool) is None:
                fail(name, "pool", self.pool, "slots as an int, or a size such as '2GB' or '512MiB', or None")
        else:
            check("pool", self.pool, least=0, optional=True)
        check_number(name, "tool_timeout_s", self.tool_timeout_s, above=0, optional=True)
        check("max_concurrent_tools", self.max_concurrent_tools, least=1)
        check("max_calls_per_turn", self.max_calls_per_turn, least=1, optional=True)
        check_bool(name, "return_log_probs", self.return_log_probs)
        check_bool(name, "progress", self.progress, optional=True)
        check_bool(name, "allow_control_tokens", self.allow_control_tokens)
        check("save_every", self.save_every, least=1)
        for path in ("log", "replay", "save"):
            if not isinstance(getattr(self, path), str | None) or getattr(self, path) == "":
                fail(name, path, getattr(self, path), "a path, or None")
