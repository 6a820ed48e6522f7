"""A trajectory as the caller sees it: a prompt going in, a rollout coming out."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fnroll.checks import check_choice, check_int, fail, plain_ids, plain_number
from fnroll.core.fields import PER_TOKEN
from fnroll.dialogue.message import Message
from fnroll.records.rewind import find_place
from fnroll.records.status import UNFINISHED, Reason, Status
from fnroll.records.turns import find_turns

__all__ = ["Reason", "RolloutRecord", "Status"]

_CHOICES = tuple((name, tuple(map(str, kind))) for name, kind in (("status", Status), ("reason", Reason)))


def _is_list(value: Any) -> bool:
    return not isinstance(value, str | bytes | Mapping) and hasattr(value, "__len__")


@dataclass(frozen=True, kw_only=True)
class RolloutRecord:
    """A prompt, and after a rollout the trajectory that followed from it.

    Example of a two-turn record, P prompt, A sampled, E tool output::

        tokens     P0 P1 P2 A0 A1 E0 E1 E2 A2 A3
        loss_mask   0  0  0  1  1  0  0  0  1  1     prompt_length = 3

    Raises:
      ValueError: if there is no prompt, or the fields that have an entry per token differ in length.
    """

    messages: Sequence[Message] | None = None
    """The prompt as chat messages; either this or `prompt_ids` is given."""
    prompt_ids: Sequence[int] | None = None
    """The prompt as ids, taken as they are. A tensor, an array or a range becomes a list."""
    tokens: tuple[int, ...] | None = None
    """Prompt, sampled tokens and tool output, in order."""
    prompt_length: int | None = None
    """How many of the tokens are the prompt."""
    loss_mask: tuple[bool, ...] | None = None
    """True on sampled tokens only."""
    log_probs: tuple[float, ...] | None = None
    """Nats, under the distribution the token was drawn from; 0 where the mask is False."""
    weight_versions: tuple[int, ...] | None = None
    """Version of the weights that sampled the token; -1 where the mask is False."""
    support: tuple[tuple[int, ...], ...] | None = None
    """The ids that each sampled token was drawn from, likeliest first; empty for the whole vocabulary."""
    status: Status | None = None
    """How the record ended, or where it stands if the rollout was cut before; None before a rollout."""
    reason: Reason | None = None
    """Why it ended."""
    error: str | None = None
    """What went wrong, in a sentence; None where nothing did."""
    num_turns: int = 0
    """Turns that the model took."""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    """Every call in order: turn, name, arguments, result, status, and the id if the model wrote one."""
    is_exact: bool = True
    """Whether the text is what the chat template writes for the whole conversation; False where it rewrites
    earlier turns (drops their reasoning, for example), which a record never does."""
    num_tool_outputs_truncated: int = 0
    """Tool outputs that were cut to `max_tool_output_chars`."""
    response: str | None = None
    """Decode of all ids after the prompt at once; None without a tokenizer."""
    group: int | None = None
    """GRPO group: samples of one prompt share it."""
    sample: int | None = None
    """Index of the sample of its prompt."""
    prompt_id: int | str | None = None
    """What tells prompts apart; part of the identity that the noise is a function of."""
    reward: float | None = None
    """Set by the caller; a NumPy number or a tensor of one becomes a float."""
    rendered_from: Mapping[str, str] | None = field(default=None, compare=False)
    """Digests of what the chat template made the prompt of, by name: messages, tools, template, tokenizer."""
    run: Mapping[str, Any] | None = None
    """Of an unfinished record: seed, step, and whatever else decides its tokens, by name."""
    metadata: Any = field(default=None, repr=False)
    """Carried through untouched; in a file, arrays and tensors are lists."""

    def __post_init__(self) -> None:
        if (self.messages is None) == (self.prompt_ids is None):
            raise ValueError(
                f"{self.label}: a record needs either messages or prompt_ids, "
                f"{'neither' if self.messages is None else 'both'} given"
            )
        lengths = {n: len(v) for n in PER_TOKEN if (v := getattr(self, n)) is not None}
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise ValueError(f"{self.label}: fields with an entry per token differ in length: {found}")
        self._check_prompt()
        self._check_values()

    def _check_prompt(self) -> None:
        messages, ids = self.messages, self.prompt_ids
        if messages is not None and not (
            _is_list(messages) and all(isinstance(m, Mapping) for m in messages)
        ):
            fail(
                "RolloutRecord", "messages", messages, "a list of messages, each a dict with role and content"
            )
        if ids is not None:
            object.__setattr__(self, "prompt_ids", plain_ids("RolloutRecord", "prompt_ids", ids))
        length, most = self.prompt_length, len(self.tokens or ())
        if length is not None and not (type(length) is int and 0 <= length <= most):
            fail("RolloutRecord", "prompt_length", length, f"an int from 0 to {most}, the number of tokens")

    def _check_values(self) -> None:
        check = functools.partial(check_int, "RolloutRecord")
        check("sample", self.sample, least=0, below=2**32, optional=True)
        check("num_turns", self.num_turns, least=0)
        check("num_tool_outputs_truncated", self.num_tool_outputs_truncated, least=0)
        if not isinstance(self.run, Mapping | None):
            fail("RolloutRecord", "run", self.run, "a mapping, or None")
        if self.group is not None and type(self.group) is not int:
            fail("RolloutRecord", "group", self.group, "an int, or None")
        for name, choices in _CHOICES:
            if getattr(self, name) is not None:
                check_choice("RolloutRecord", name, getattr(self, name), choices)
        reward = plain_number(self.reward)
        if not isinstance(reward, int | float | None):
            fail("RolloutRecord", "reward", self.reward, "a number, or None")
        if reward is not None and reward is not self.reward:
            object.__setattr__(self, "reward", float(reward))
        if not isinstance(self.prompt_id, str | None):
            if not isinstance(self.prompt_id, int) or isinstance(self.prompt_id, bool):
                fail("RolloutRecord", "prompt_id", self.prompt_id, "an int or a str")
            check_int("RolloutRecord", "prompt_id", self.prompt_id, least=0, below=2**63)

    @property
    def label(self) -> str:
        """How messages name this record."""
        return f"record {self.prompt_id if self.prompt_id is not None else '?'}/{self.sample or 0}"

    @property
    def is_rolled_out(self) -> bool:
        """Whether the record holds a rollout."""
        return self.status is not None or self.tokens is not None

    @property
    def is_unfinished(self) -> bool:
        """Whether the record holds a rollout that was cut and can be gone on with."""
        return self.status in UNFINISHED

    @property
    def turns(self) -> list[tuple[int, int]]:
        """Where each turn's sampled tokens begin and end; what its tools said stands behind it."""
        return find_turns(self.loss_mask or ())

    @property
    def response_ids(self) -> tuple[int, ...]:
        """The ids after the prompt."""
        return () if self.tokens is None else self.tokens[self.prompt_length :]

    @property
    def num_sampled(self) -> int:
        """How many tokens were sampled."""
        return 0 if self.loss_mask is None else sum(self.loss_mask)

    def replace(self, **changes: Any) -> RolloutRecord:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def with_rollout(self, **fields: Any) -> RolloutRecord:
        """Return a copy with fields that a rollout filled in; they are not checked again."""
        new = object.__new__(type(self))
        new.__dict__.update(vars(self), **fields)
        return new

    def rewind(self, length: int) -> RolloutRecord:
        """Return the record as it was when it had `length` tokens, to be rolled out again from there.

        Text, reason and reward are gone. At the end of a turn the record is `WAITING`: the turn is read
        again, and its tools run again; inside a turn it is `RUNNING`, and elsewhere `PENDING`.

        Raises:
          ValueError: naming `length` and the bound, if it lies in the prompt, between two turns, or beyond
            the end; or if the record holds no rollout.
        """
        if self.tokens is None or self.loss_mask is None or self.prompt_length is None:
            raise ValueError(f"{self.label} holds no rollout, so there is nothing to rewind")
        check_int("rewind", "length", length, least=0)
        place = find_place(
            self.label, self.loss_mask, self.prompt_length, self.num_turns, self.tool_calls, length
        )
        return self.replace(
            **{name: values[:length] for name in PER_TOKEN if (values := getattr(self, name)) is not None},
            status=place.status,
            num_turns=place.num_turns,
            tool_calls=place.tool_calls,
            num_tool_outputs_truncated=sum(bool(call.get("truncated")) for call in place.tool_calls),
            reason=None,
            error=None,
            response=None,
            reward=None,
        )

    def fork(self, sample: int) -> RolloutRecord:
        """Return the unfinished record as another sample: the same tokens so far, other noise from here on.

        Raises:
          ValueError: if the record is not unfinished, or is that sample.
        """
        if not self.is_unfinished:
            raise ValueError(
                f"{self.label} is {self.status}; only an unfinished record forks, rewind it first"
            )
        if sample == (self.sample or 0):
            raise ValueError(
                f"{self.label}: a fork needs another sample than {sample}, or it draws the same noise"
            )
        return self.replace(sample=sample, reward=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON-able values; fields that hold nothing are left out."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        empty = {name for name, value in values.items() if isinstance(value, tuple) and not value}
        return {name: value for name, value in values.items() if value is not None and name not in empty}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RolloutRecord:
        """Return the record that `to_dict` gave.

        Raises:
          ValueError: naming a field that a record does not have.
        """
        names = {f.name for f in dataclasses.fields(cls)}
        if unknown := sorted(set(values) - names):
            raise ValueError(f"a record has no field {', '.join(map(repr, unknown))}")
        fields: dict[str, Any] = dict(values)
        for name in (*PER_TOKEN, "tool_calls"):
            if fields.get(name) is not None:
                if not isinstance(fields[name], list | tuple):
                    fail("RolloutRecord", name, fields[name], "a list")
                is_vector = name in PER_TOKEN and PER_TOKEN[name].is_vector
                fields[name] = tuple(map(tuple, fields[name]) if is_vector else fields[name])
        if fields.get("status") is not None:
            fields["status"] = Status(fields["status"])
        if fields.get("reason") is not None:
            fields["reason"] = Reason(fields["reason"])
        return cls(**fields)
