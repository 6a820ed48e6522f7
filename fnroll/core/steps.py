"""The steps of a rollout: pure functions from a state to the next.

A row that holds a record always satisfies `cached == length - 1` between steps: its last token is known
but not yet fed. `extend` feeds it, `sample` appends the next one. A prompt, a tool output and a sampled
token are therefore fed by the same code, and no token is fed twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fnroll.core import queue as queues
from fnroll.core import types as t
from fnroll.core.append import append
from fnroll.core.buffer import put
from fnroll.core.logits import draw, find_support, process
from fnroll.core.model import Chunk, ModelFn
from fnroll.core.pool import disown
from fnroll.core.tree import replace
from fnroll.core.types import Begun, RolloutState, Rows, SamplingParams


def enqueue(
    state: RolloutState,
    line: Tensor,
    tokens: Tensor,
    count: Tensor,
    limit: Tensor,
    key: Tensor,
    begun: Begun | None = None,
) -> RolloutState:
    """Put new records, or ones that were begun elsewhere, into free lines and at the back of the queue.

    Args:
      state: before.
      line: `[R]` int64, lines of status `FREE` or ended ones that are used again; the sink for padding.
      tokens: `[R, K]` int64, prompts, or all tokens that a record has, left-aligned.
      count: `[R]` int64, how many of them there are, at least 1 and below `limit`.
      limit: `[R]` int64, length at which the present turn must stop, at most T.
      key: `[R, 2]` int64, from `init_keys`.
      begun: what else is known of records that were begun elsewhere; None if the tokens are prompts.
    """
    zero, records = torch.zeros_like(line), state.records
    real = line < state.num_records
    waiting = torch.zeros_like(real) if begun is None else begun.waiting
    empty = replace(
        records,
        length=put(records.length, (line,), zero),
        limit=put(records.limit, (line,), limit),
        turn=put(records.turn, (line,), zero if begun is None else begun.turn),
        status=put(
            records.status,
            (line,),
            torch.where(real, torch.where(waiting, t.WAITING, t.PENDING), t.FREE),
        ),
        reason=put(records.reason, (line,), zero),
        key=put(records.key, (line,), key),
    )
    entries = {} if begun is None else begun.entries
    filled = append(empty, line, count, {"tokens": tokens, **entries})
    queue = queues.push_back(state.queue, torch.where(waiting, state.num_records, line))
    return replace(state, records=filled, queue=queue, pool=disown(state.pool, line))


def admit(state: RolloutState, *, static: bool = False) -> tuple[RolloutState, Tensor]:
    """Give free rows to the records that wait, smallest ticket first.

    Args:
      state: before.
      static: admit only when every row is free (static batching); else at any time (continuous).

    Returns:
      The state, and `[B]` int64: the line that each row took in this step, or `Rows.IDLE`.
    """
    rows, sink = state.rows, state.num_records
    free = rows.record == Rows.IDLE
    open_ = free & free.all() if static else free
    first, exists = queues.peek(state.queue, state.num_rows)
    rank = (open_.cumsum(0) - 1).clamp(min=0)
    taken = open_ & exists[rank]
    record = torch.where(taken, first[rank], sink)
    status = torch.where(taken, t.RUNNING, t.FREE)
    new = replace(
        state,
        rows=Rows(
            record=torch.where(taken, record, rows.record),
            cached=torch.where(taken, 0, rows.cached),
            sound=torch.where(taken, Rows.ALL, rows.sound),
        ),
        queue=queues.drop(state.queue, record),
        records=replace(state.records, status=put(state.records.status, (record,), status)),
    )
    return new, torch.where(taken, record, Rows.IDLE)


def _held(
    state: RolloutState, rows: Tensor | None, height: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the line of each row (the sink for idle ones), its length, and how much of it is cached.

    Args:
      state: before or after a forward.
      rows: `[A]` int64; None for the first `height`.
      height: static; None for all.
    """
    which = slice(height) if rows is None else rows
    record, cached = state.rows.record[which], state.rows.cached[which]
    idle = record == Rows.IDLE
    line = torch.where(idle, state.num_records, record)
    return line, state.records.length[line], torch.where(idle, 0, cached)


def _feed(
    params: Any,
    state: RolloutState,
    rows: Tensor | None,
    end: Tensor,
    model: ModelFn,
    width: int,
    window: int,
    needs_logits: bool = True,
) -> tuple[Tensor, RolloutState]:
    """Feed what lies in the last `width` positions before `end`, `[A]`, and is not cached."""
    line, _, cached = _held(state, rows, end.shape[0])
    start = end - width
    position = start[:, None] + torch.arange(width, device=end.device)
    fed = position >= cached[:, None]
    chunk = Chunk(
        # Empty columns feed token 0: what the line held there is nobody's business.
        tokens=torch.where(fed, state.records.tokens[line[:, None], position.clamp(min=0)], 0),
        start=start,
        slots=torch.where(fed, position, state.max_length),
        rows=rows,
        window=window,
        needs_logits=needs_logits,
    )
    output = model(params, chunk, state.cache)
    old = state.rows.cached
    cached = torch.cat((end, old[end.shape[0] :])) if rows is None else put(old, (rows,), end)
    new = replace(state.rows, cached=cached)
    if output.is_finite is not None:
        first = torch.where(fed & ~output.is_finite, position, Rows.ALL).amin(dim=1)
        which = torch.arange(end.shape[0], device=end.device) if rows is None else rows
        new = replace(new, sound=put(new.sound, (which,), torch.minimum(first, new.sound[which])))
    return output.logits, replace(state, cache=output.cache, rows=new)


def prefill(
    params: Any,
    state: RolloutState,
    rows: Tensor | None,
    count: Tensor | None = None,
    *,
    model: ModelFn,
    width: int,
    window: int,
) -> RolloutState:
    """Feed up to `width` tokens of each given row, all but the last token that its record knows.

    Args:
      params: of the model.
      state: before.
      rows: `[A]` int64, no row twice; None for all in order, which copies nothing of the cache. Rows with
        nothing to feed take part and change nothing.
      count: `[A]` int64, the most tokens that each row feeds, 0 for a row that only fills a shape up; None
        is `width`.
      model: static; the pure model.
      width: static; Q.
      window: static; W, at least the largest length of these records less one.
    """
    _, length, cached = _held(state, rows)
    most = width if count is None else count.clamp(max=width)
    end = torch.minimum((length - 1).clamp(min=0), cached + most)
    _, new = _feed(params, state, rows, end, model, width, window, needs_logits=False)
    return new


def extend(
    params: Any, state: RolloutState, *, model: ModelFn, window: int, height: int | None = None
) -> tuple[Tensor, RolloutState]:
    """Feed the last known token of every row that lacks only that one.

    Args:
      params: of the model.
      state: before.
      model: static; the pure model.
      window: static; W, at least the largest length of a running record.
      height: static; A, rows that take part, the first ones; the others must be idle. None is all.

    Returns:
      Logits `[A, V]` of the token after it, and the state.
    """
    _, length, cached = _held(state, None, height)
    end = torch.where(cached == length - 1, length, cached)
    return _feed(params, state, None, end, model, 1, window)


def select_params(params: SamplingParams, line: Tensor) -> SamplingParams:
    """Return the parameters of the lines `[B]`, each field `[B]`."""
    return replace(
        params,
        temperature=params.temperature[line],
        top_k=params.top_k[line],
        top_p=params.top_p[line],
        repetition_penalty=params.repetition_penalty[line],
    )


def sample(state: RolloutState, logits: Tensor) -> RolloutState:
    """Draw a token for every row whose known tokens are all cached, and append it to its record.

    A record whose logits are no distribution (NaN, an infinity, or nothing left), or that has keys or values
    which were not finite, gets no token: it is `FAILED` with reason `NOT_FINITE`, and `retire` frees its row.

    Args:
      state: after `extend`.
      logits: `[A, V]`, of the token after each row's last, for the first A rows.
    """
    records, sink = state.records, state.num_records
    line, position, cached = _held(state, None, logits.shape[0])
    ready = (records.status[line] == t.RUNNING) & (cached == position)
    line = torch.where(ready, line, sink)
    params = select_params(state.sampling, line)
    history = (records.tokens[line], position) if params.use_penalty else None
    scores = process(logits, params, history)
    entries = {"loss_mask": torch.ones_like(ready), "weight_versions": state.version.expand(line.shape)}
    if records.support is not None:
        scores, entries["support"] = find_support(scores, params, records.support.shape[-1])
    entries["tokens"], entries["log_probs"] = draw(scores, params, records.key[line], position)
    one = {name: entry[:, None] for name, entry in entries.items()}
    is_drawn = entries["log_probs"].isfinite() & (state.rows.sound[: logits.shape[0]] >= position)
    grown = append(records, torch.where(is_drawn, line, sink), torch.ones_like(line), one)
    failed = torch.where(ready & ~is_drawn, line, sink)
    is_real = failed != sink
    status = put(grown.status, (failed,), torch.where(is_real, t.FAILED, t.FREE))
    reason = put(grown.reason, (failed,), torch.where(is_real, t.NOT_FINITE, t.NO_REASON))
    return replace(state, records=replace(grown, status=status, reason=reason))


def retire(state: RolloutState, *, multi_turn: bool = False) -> tuple[RolloutState, Tensor]:
    """Free the rows whose turn ended: by a stop id (reason `EOS`), by its limit (`LENGTH`), or in failure.

    Args:
      state: after `sample`.
      multi_turn: static; a turn that ended by a stop id leaves its record `WAITING` for what comes back,
        instead of `COMPLETED`. One cut by its limit is `TRUNCATED` either way.

    Returns:
      The state, and `[B]` int64: the line whose turn ended in each row, or `Rows.IDLE`.
    """
    rows, records = state.rows, state.records
    busy = rows.record != Rows.IDLE
    line = torch.where(busy, rows.record, state.num_records)
    length = records.length[line]
    # The last token ends a turn only if it was sampled: a prompt may end in a stop id.
    at = (length - 1).clamp(min=0)
    # Not `isin`, which `torch.func.vmap` has no batching rule for.
    is_stop = (records.tokens[line, at][:, None] == state.stop_ids).any(dim=-1)
    stopped = records.loss_mask[line, at] & is_stop
    failed = records.status[line] == t.FAILED
    ended = busy & (stopped | failed | (length >= records.limit[line]))
    line = torch.where(ended, line, state.num_records)
    status = torch.where(stopped, t.WAITING if multi_turn else t.COMPLETED, t.TRUNCATED)
    status = torch.where(failed, t.FAILED, status)
    reason = torch.where(failed, records.reason[line], torch.where(stopped, t.EOS, t.LENGTH))
    new = replace(
        records,
        status=put(records.status, (line,), torch.where(ended, status, t.FREE)),
        reason=put(records.reason, (line,), torch.where(ended, reason, t.NO_REASON)),
        turn=put(records.turn, (line,), torch.where(ended, records.turn[line] + 1, 0)),
    )
    free = replace(
        rows, record=torch.where(ended, Rows.IDLE, rows.record), cached=torch.where(ended, 0, rows.cached)
    )
    return replace(state, records=new, rows=free), torch.where(ended, line, Rows.IDLE)


def append_tool(
    state: RolloutState, record: Tensor, tokens: Tensor, count: Tensor, limit: Tensor, *, front: bool = True
) -> RolloutState:
    """Append tool output to waiting records and queue them again.

    What does not fit below a record's limit, with a token to sample after it, is dropped whole: the record
    ends `TRUNCATED` with reason `TOOL_OUTPUT`, never with half an output.

    Args:
      state: before.
      record: `[R]` int64, lines of status `WAITING`; the sink for padding.
      tokens: `[R, K]` int64, left-aligned.
      count: `[R]` int64, tokens of each output, at least 1.
      limit: `[R]` int64, length at which the next turn must stop, at most T.
      front: static; queue them before all others, else behind them.
    """
    records, sink = state.records, state.num_records
    fits = (records.length[record] + count < limit) & (record < sink)
    line = torch.where(fits, record, sink)
    new = append(records, line, count, {"tokens": tokens})
    status = torch.where(record == sink, t.FREE, torch.where(fits, t.PENDING, t.TRUNCATED))
    reason = torch.where(record == sink, t.NO_REASON, torch.where(fits, t.NO_REASON, t.TOOL_OUTPUT))
    new = replace(
        new,
        status=put(new.status, (record,), status),
        reason=put(new.reason, (record,), reason),
        limit=put(new.limit, (line,), limit),
    )
    push = queues.push_front if front else queues.push_back
    return replace(state, records=new, queue=push(state.queue, line))


def finish(state: RolloutState, record: Tensor, status: Tensor, reason: Tensor) -> RolloutState:
    """End records where they stand: free their rows, take them out of the queue.

    Args:
      state: before.
      record: `[R]` int64, any lines; the sink for padding.
      status: `[R]` int64, `COMPLETED`, `TRUNCATED` or `FAILED`.
      reason: `[R]` int64.
    """
    records, sink = state.records, state.num_records
    held = (state.rows.record[:, None] == record).any(dim=1)
    new = replace(
        records,
        status=put(records.status, (record,), torch.where(record == sink, t.FREE, status)),
        reason=put(records.reason, (record,), torch.where(record == sink, t.NO_REASON, reason)),
    )
    rows = replace(
        state.rows,
        record=torch.where(held, Rows.IDLE, state.rows.record),
        cached=torch.where(held, 0, state.rows.cached),
    )
    queue = queues.drop(state.queue, record)
    return replace(state, records=new, rows=rows, queue=queue, pool=disown(state.pool, record))


def decode_step(
    params: Any, state: RolloutState, *, model: ModelFn, window: int, height: int | None = None,
    multi_turn: bool = False,
) -> tuple[RolloutState, Tensor]:  # fmt: skip
    """Extend, sample, retire: feed a token of each of the first `height` rows (None is all), draw the next.

    Returns:
      The state, and `[B]` int64: the line whose turn ended in each row, or `Rows.IDLE`.
    """
    logits, state = extend(params, state, model=model, window=window, height=height)
    return retire(sample(state, logits), multi_turn=multi_turn)


def compose(*steps: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Join steps of one argument from left to right: `compose(f, g)(state)` is `g(f(state))`."""

    def composed(value: Any) -> Any:
        for step in steps:
            value = step(value)
        return value

    return composed
