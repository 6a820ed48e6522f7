"""The state of a rollout: one immutable tree of tensors.

N records (lines), B rows, P pool slots, T length cap, L layers, H key-value heads, D head size, V vocabulary,
S stop ids.
Every buffer has one line or slot more than it needs, the *sink*: what idle rows write lands there, so that
no write is ever masked away, and nothing reads it.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from fnroll.core.fields import PER_TOKEN, PerToken
from fnroll.core.tree import pytree, static

# Statuses and reasons are plain ints: a compiled `tensor == IntEnum` silently gives a Python bool.
FREE = 0
PENDING = 1
RUNNING = 2
WAITING = 3
COMPLETED = 4
TRUNCATED = 5
FAILED = 6

NO_REASON = 0
EOS = 1
LENGTH = 2
TURN_LENGTH = 3
MAX_TURNS = 4
TOOL_OUTPUT = 5
PROMPT = 6
TOOL_ERROR = 7
ABORTED = 8
NOT_FINITE = 9

STATUS_NAMES = ("FREE", "PENDING", "RUNNING", "WAITING", "COMPLETED", "TRUNCATED", "FAILED")
REASON_NAMES = (
    "",
    "eos",
    "length",
    "turn_length",
    "max_turns",
    "tool_output",
    "prompt",
    "tool_error",
    "aborted",
    "not_finite",
)


@pytree
class Records:
    """The trajectories, one line each, left-aligned, with no padding inside a line.

    The fields of the table `fnroll.core.fields.PER_TOKEN` grow together: one function appends them.
    """

    tokens: Tensor
    """`[N+1, T]` int64: prompt, sampled tokens and tool output, in order."""
    loss_mask: Tensor
    """`[N+1, T]` bool: True on sampled tokens only."""
    log_probs: Tensor
    """`[N+1, T]` float32: nats, under the distribution the token was drawn from; 0 elsewhere."""
    weight_versions: Tensor
    """`[N+1, T]` int32: version of the weights that sampled the token; -1 elsewhere."""
    length: Tensor
    """`[N+1]` int64: tokens in use; 0 for the sink."""
    limit: Tensor
    """`[N+1]` int64: length at which the present turn must stop."""
    turn: Tensor
    """`[N+1]` int64: turns finished."""
    status: Tensor
    """`[N+1]` int64: one of `FREE` ... `FAILED`."""
    reason: Tensor
    """`[N+1]` int64: why the last turn or the record ended, `EOS` ... `NOT_FINITE`."""
    key: Tensor
    """`[N+1, 2]` int64: random key words; a function of the record's identity, never advanced."""
    support: Tensor | None = None
    """`[N+1, T, K]` int32: the ids that a sampled token was drawn from, likeliest first, -1 for none; all -1
    where it was drawn from the whole vocabulary. None where supports are not kept."""


@pytree
class Begun:
    """What is known, beside their tokens, of R records that were begun elsewhere and are gone on with."""

    entries: dict[str, Tensor]
    """By per-token field but `tokens`: `[R, K]`, or `[R, K, S]` of a vector."""
    turn: Tensor
    """`[R]` int64: turns finished."""
    waiting: Tensor
    """`[R]` bool: the last turn has ended and waits for its tools; such a record is not queued."""


@pytree
class Rows:
    """The batch that the model runs."""

    IDLE: ClassVar[int] = -1
    ALL: ClassVar[int] = 2**62

    record: Tensor
    """`[B]` int64: the line that the row decodes; `IDLE` when the row is free."""
    cached: Tensor
    """`[B]` int64: tokens whose keys and values are in the row's cache."""
    sound: Tensor
    """`[B]` int64: position of the first token whose keys or values were not finite; `ALL` if all were."""


@pytree
class Queue:
    """Who waits for a row, by ticket: the smallest goes first."""

    NO_TICKET: ClassVar[int] = 2**62

    ticket: Tensor
    """`[N+1]` int64: `NO_TICKET` for a line that is not queued."""
    front: Tensor
    """`[]` int64: the smallest ticket given so far; returning turns take smaller ones."""
    back: Tensor
    """`[]` int64: the next ticket for a new record."""


@pytree
class Cache:
    """Keys and values of the rows, one pair of tensors per layer.

    A tuple, because stacking the layers would copy them; `[B, T+1, H, D]`, because then a token's keys and
    values are one contiguous write. Slot T is the sink.
    """

    keys: tuple[Tensor, ...]
    """L tensors `[B, T+1, H, D]`."""
    values: tuple[Tensor, ...]
    """L tensors `[B, T+1, H, D]`; the head size may differ from that of the keys."""


@pytree
class Pool:
    """Keys and values that wait for a row: those of parked turns, and what forks were given.

    A slot is as long as a row. There is no sink slot, which would cost as much: what a padding entry copies
    lands in slot T of a place, as an idle row's writes do.
    """

    FREE: ClassVar[int] = -1

    keys: tuple[Tensor, ...]
    """L tensors `[P, T+1, H, D]`."""
    values: tuple[Tensor, ...]
    """L tensors `[P, T+1, H, D]`."""
    owner: Tensor
    """`[P+1]` int64: the line whose keys and values a slot holds; `FREE` for none."""
    length: Tensor
    """`[P+1]` int64: how many of its tokens; 0 for none."""


@pytree
class SamplingParams:
    """How tokens are drawn, for each line; the static fields only say what a step may leave out."""

    temperature: Tensor
    """`[N+1]` float32: 0 takes the most likely token."""
    top_k: Tensor
    """`[N+1]` int64: 0 is off."""
    top_p: Tensor
    """`[N+1]` float64: 1 is off."""
    repetition_penalty: Tensor
    """`[N+1]` float32: 1 is off."""
    max_top_k: int = static(default=0)
    """An upper bound of `top_k` over all lines; 0 leaves the step out."""
    use_top_p: bool = static(default=False)
    use_penalty: bool = static(default=False)
    use_noise: bool = static(default=True)
    """False when every temperature is 0."""


@pytree
class RolloutState:
    """Everything a rollout is; a value that can be kept, forked, compared and saved."""

    records: Records
    rows: Rows
    queue: Queue
    cache: Cache
    sampling: SamplingParams
    stop_ids: Tensor
    """`[S]` int64: a sampled token that is one of these ends the turn."""
    version: Tensor
    """`[]` int32: version of the weights in use."""
    pool: Pool | None = None
    """Where keys and values wait; None for no slots."""

    @property
    def num_records(self) -> int:
        """N: record lines, the sink not counted."""
        return self.records.length.shape[0] - 1

    @property
    def num_rows(self) -> int:
        """B: rows of the batch."""
        return self.rows.record.shape[0]

    @property
    def max_length(self) -> int:
        """T: the most tokens that a record can hold."""
        return self.records.tokens.shape[1]


def init_records(
    num_records: int, max_length: int, device: torch.device | str = "cpu", support_size: int = 0
) -> Records:
    """Return `num_records` free lines of `max_length` tokens, and the sink; `support_size` 0 keeps none."""
    lines, sizes = num_records + 1, {"support": support_size}

    def empty(name: str, field: PerToken) -> Tensor | None:
        shape = (lines, max_length, *([sizes[name]] if field.is_vector else ()))
        if 0 in shape[2:]:
            return None
        return torch.full(shape, field.empty, dtype=getattr(torch, field.dtype), device=device)

    def zeros(*more: int) -> Tensor:
        return torch.zeros((lines, *more), dtype=torch.int64, device=device)

    per_token: Any = {name: empty(name, field) for name, field in PER_TOKEN.items()}
    whole = {name: zeros() for name in ("length", "limit", "turn", "status", "reason")}
    return Records(**per_token, **whole, key=zeros(2))


def init_sampling(num_records: int, device: torch.device | str = "cpu") -> SamplingParams:
    """Return parameters under which every line samples from the model's own distribution."""
    n = num_records + 1
    return SamplingParams(
        temperature=torch.ones(n, device=device),
        top_k=torch.zeros(n, dtype=torch.int64, device=device),
        top_p=torch.ones(n, dtype=torch.float64, device=device),
        repetition_penalty=torch.ones(n, device=device),
    )


def init_state(
    cache: Cache,
    *,
    num_records: int,
    stop_ids: Tensor,
    sampling: SamplingParams | None = None,
    version: int = 0,
    support_size: int = 0,
    pool: Pool | None = None,
) -> RolloutState:
    """Return a state with free rows and free lines around an empty cache.

    Args:
      cache: of the model, from its `init_cache(rows, max_length)`; it gives B, T and the device.
      num_records: N, how many records can be in flight; lines of finished records are used again.
      stop_ids: `[S]` int64.
      sampling: per line; the default samples from the model's own distribution.
      version: of the weights.
      support_size: K, how many ids a kept support has at most; 0 keeps none.
      pool: from `fnroll.core.pool.init_pool`; None for no slots.
    """
    rows, slots = cache.keys[0].shape[:2]
    device = cache.keys[0].device
    free = torch.full((rows,), Rows.IDLE, dtype=torch.int64, device=device)
    return RolloutState(
        records=init_records(num_records, slots - 1, device, support_size),
        rows=Rows(record=free, cached=torch.zeros_like(free), sound=torch.full_like(free, Rows.ALL)),
        queue=Queue(
            ticket=torch.full((num_records + 1,), Queue.NO_TICKET, dtype=torch.int64, device=device),
            front=torch.zeros((), dtype=torch.int64, device=device),
            back=torch.zeros((), dtype=torch.int64, device=device),
        ),
        cache=cache,
        sampling=init_sampling(num_records, device) if sampling is None else sampling,
        stop_ids=stop_ids.to(device=device, dtype=torch.int64),
        version=torch.tensor(version, dtype=torch.int32, device=device),
        pool=pool,
    )
