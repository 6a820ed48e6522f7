"""The one place where a step writes into a buffer: into a copy, or in place where the buffer was donated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_donated: ContextVar[frozenset[int]] = ContextVar("donated", default=frozenset())


@contextmanager
def donating(buffers: Sequence[Tensor]) -> Iterator[None]:
    """Let `put` write into `buffers` in place, in eager mode, until the block ends."""
    token = _donated.set(_donated.get() | {id(buffer) for buffer in buffers})
    try:
        yield
    finally:
        _donated.reset(token)


def put(buffer: Tensor, indices: tuple[Tensor, ...], values: Tensor) -> Tensor:
    """Return `buffer` with `values` at `indices` of its leading dimensions.

    A copy, unless the buffer is being donated in eager mode. A compiled step always traces the copy:
    there the compiler turns it into a write in place.
    """
    if not torch.compiler.is_compiling() and id(buffer) in _donated.get():
        return buffer.index_put_(indices, values)
    return buffer.index_put(indices, values)
