"""The queue of records that wait for a row: tickets, so that going to the front needs no moving."""

from __future__ import annotations

import torch
from torch import Tensor

from fnroll.core.buffer import put
from fnroll.core.tree import replace
from fnroll.core.types import Queue


def push_back(queue: Queue, record: Tensor) -> Queue:
    """Queue the lines `record`, `[R]` int64, in their order behind all others."""
    order = torch.arange(record.shape[0], device=record.device)
    ticket = put(queue.ticket, (record,), queue.back + order)
    return replace(queue, ticket=ticket, back=queue.back + record.shape[0])


def push_front(queue: Queue, record: Tensor) -> Queue:
    """Queue the lines `record`, `[R]` int64, in their order before all others."""
    front = queue.front - record.shape[0]
    order = torch.arange(record.shape[0], device=record.device)
    return replace(queue, ticket=put(queue.ticket, (record,), front + order), front=front)


def peek(queue: Queue, count: int) -> tuple[Tensor, Tensor]:
    """Return the first `count` queued lines and which of them exist, `[count]` int64 and bool."""
    waiting = queue.ticket[:-1]  # the sink is never in the queue, whatever idle entries wrote there
    found = min(count, waiting.shape[0])
    ticket, record = torch.topk(waiting, found, largest=False, sorted=True)
    if missing := count - found:
        record = torch.nn.functional.pad(record, (0, missing))
        ticket = torch.nn.functional.pad(ticket, (0, missing), value=Queue.NO_TICKET)
    return record, ticket < Queue.NO_TICKET


def drop(queue: Queue, record: Tensor) -> Queue:
    """Take the lines `record`, `[R]` int64, out of the queue; those not in it stay out."""
    none = torch.full_like(record, Queue.NO_TICKET)
    return replace(queue, ticket=put(queue.ticket, (record,), none))
