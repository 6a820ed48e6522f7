"""Whether a model over our cache says what its own forward says, tried on a few tokens."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fnroll.core.model import Chunk
from fnroll.models import attention
from fnroll.models.base import Model
from fnroll.models.support import UnsupportedModelError, set_attention

_ROWS = ((5, 6, 7, 8, 9), (10, 11, 12))
"""Unequal, so that positions and masks of a row are not those of the other."""
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-4}
_ROUGH = 0.2
"""Of distances, as a share of the logits' own spread; a wrong mask or position is nearly all of it. In 16
bits and less, where experts that a router finds as good change places, rounding is some hundredths."""

Plain = Callable[..., Tensor]
"""`(row of ids) -> logits [Q, V]`, by a forward of the model's own."""


def check_agreement(model: Model, twin: nn.Module, module: nn.Module) -> None:
    """Require that unequal rows over the cache have the logits that the model's own forward gives each alone.

    Raises:
      UnsupportedModelError: saying how far they are apart, and why.
    """
    rows = [[token % model.vocab_size for token in row] for row in _ROWS]
    longest = max(map(len, rows))
    if model.device.type == "meta" or (model.max_positions or longest) < longest:
        return
    plain = partial(_run_plain, twin, module.config, device=model.device)
    with torch.no_grad():
        expected = _last(plain, rows)
        if expected is None or not expected.isfinite().all():
            return  # there is nothing to compare with
        try:
            distance = _distance(_run_rows(model, rows), expected)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            said = f"its forward fails over a cache of unequal rows ({' '.join(str(error).split())})"
        else:
            if distance <= _limit(model):
                return
            said = (
                f"over a cache of unequal rows its logits are {distance:.1%} of their spread away from those "
                f"of its own forward"
            )
        raise UnsupportedModelError(f"{model.name}: {said}: {_find_cause(model, module, plain, rows[0])}")


def _limit(model: Model) -> float:
    return _TOLERANCE.get(model.dtype, _ROUGH)


def _last(plain: Plain, rows: Sequence[Sequence[int]]) -> Tensor | None:
    """Return the logits of each row's last token, `[n, V]`; None if the forward cannot run."""
    try:
        return torch.stack([plain(row)[-1] for row in rows])
    except Exception:  # no attention of the model's own runs here
        return None


def _find_cause(model: Model, module: nn.Module, plain: Plain, row: Sequence[int]) -> str:
    if "position_ids" not in inspect.signature(module.forward).parameters:
        return "it takes no position_ids, so every row would be at the positions of the longest"
    # The same shapes, so nearly the same rounding.
    if _distance(plain(row)[:-1], plain([*row[:-1], 0])[:-1]) > _limit(model) / 10:
        return "it attends to later tokens"
    if _distance(plain(row), plain(row, position_ids=range(len(row)))) > _limit(model):
        return "the positions that it makes itself do not count from 0"
    return "it uses something that is neither a position, nor a mask of transformers', nor in the cache"


def _distance(found: Tensor, expected: Tensor) -> float:
    """Return how far logits `[n, V]` are apart, as a share of the spread of the expected ones."""
    found, expected = found.double(), expected.double()
    found, expected = (logits - logits.mean(dim=-1, keepdim=True) for logits in (found, expected))
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))


def _run_plain(
    twin: nn.Module,
    config: Any,
    row: Sequence[int],
    *,
    device: torch.device,
    position_ids: Sequence[int] | None = None,
) -> Tensor:
    """Return the logits `[Q, V]` of a row alone, by the model's own attention and without a cache."""
    more = {} if position_ids is None else {"position_ids": _row(position_ids, device)}
    set_attention(twin, config._attn_implementation)
    try:
        logits: Tensor = twin(input_ids=_row(row, device), use_cache=False, **more).logits[0]
        return logits
    finally:
        set_attention(twin, attention.IMPLEMENTATION)


def _row(values: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor([list(values)], dtype=torch.int64, device=device)


def _run_rows(model: Model, rows: Sequence[Sequence[int]]) -> Tensor:
    """Return the last logits of the rows together: all but the last token in one chunk, then the last."""
    device, longest = model.device, max(map(len, rows))
    cache = model.init_cache(len(rows), longest)
    end = torch.tensor([len(row) for row in rows], dtype=torch.int64, device=device)
    width = longest - 1
    padded = [[0] * (longest - len(row)) + list(row) for row in rows]
    tokens = torch.tensor(padded, dtype=torch.int64, device=device)
    for columns, last in ((tokens[:, :width], end - 1), (tokens[:, width:], end)):
        start = last - columns.shape[1]
        position = start[:, None] + torch.arange(columns.shape[1], dtype=torch.int64, device=device)
        chunk = Chunk(
            tokens=columns,
            start=start,
            slots=torch.where(position >= 0, position, longest),
            rows=None,
            window=longest,
        )
        output = model.fn(model.params, chunk, cache)
        cache = output.cache
    return output.logits
