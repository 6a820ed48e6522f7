"""Whether a model keeps records apart that share a row."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fnroll.models.forward import Forward, in_evaluation
from fnroll.models.lines import Lines

_FEW = 4
_PROVEN: WeakKeyDictionary[nn.Module, dict[str, int]] = WeakKeyDictionary()
"""By attention implementation, how long the records were with which it was tried; 0 where it failed."""
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
_ROUGH = 0.05
"""Of the distance, as a share of the states' size. Too small a one costs padding and nothing else."""


def _kind(module: nn.Module) -> str:
    return str(getattr(module.config, "_attn_implementation", None))


def is_known_to_pack(module: nn.Module) -> bool:
    """Say whether records were found to be kept apart, in what was scored so far."""
    return _PROVEN.get(module, {}).get(_kind(module), 0) > 0


def can_pack(forward: Forward, lines: Lines) -> bool:
    """Say whether records in one row, parted by their positions, get the same states as in rows of their own.

    transformers builds such a mask for most architectures; others let a record see those before it, or count
    positions over the whole row. Tried on the two longest records, again where records are twice as long.
    """
    if len(lines.length) == 1:
        return True
    module = forward.module
    kind, known = _kind(module), _PROVEN.setdefault(module, {})
    if known.get(kind) == 0 or known.get(kind, -1) >= lines.width:
        return bool(known[kind])
    pair = lines.length.topk(2).indices
    with in_evaluation(module):
        # A few tokens first: a model that counts on over a long row has no positions for its end.
        kept_apart = all(_is_apart(forward, lines, pair, width) for width in (_FEW, lines.width))
    known[kind] = 2 * lines.width if kept_apart else 0
    return kept_apart


def _is_apart(forward: Forward, lines: Lines, pair: Tensor, width: int) -> bool:
    ids = lines.ids[pair, :width]
    positions = torch.arange(width, dtype=torch.int64, device=ids.device).expand_as(ids)
    valid = positions < lines.length[pair, None]
    alone = forward(ids)[valid].double()
    packed = forward(ids[valid][None], positions[valid][None])[0]
    distance = (packed.double() - alone).norm() / alone.norm()
    return bool(distance <= _TOLERANCE.get(packed.dtype, _ROUGH))
