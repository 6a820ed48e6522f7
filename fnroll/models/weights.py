"""What can be said of a model's weights cheaply: which are not finite, and what tells them from others."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from fnroll.core.tree import leaf_names, tree_leaves
from fnroll.models.base import Model

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_SAMPLES = 64
"""Numbers of each tensor that a digest reads."""


def named_tensors(model: Model) -> list[tuple[str, Tensor]]:
    """Return all weights of a model by name: those its function reads, and those it is given."""
    given = zip(leaf_names(model.params), tree_leaves(model.params), strict=True)
    return [
        *model.named_weights(),
        *((name or "params", leaf) for name, leaf in given if isinstance(leaf, Tensor)),
    ]


class WeightWatch:
    """Looks at the weights of one model that changed since it last looked."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._seen: dict[str, tuple[int, int]] = {}

    def find_not_finite(self) -> list[str]:
        """Return the names of weights, new or changed since the last look, that hold NaN or an infinity."""
        changed = []
        for name, tensor in named_tensors(self._model):
            if tensor.dtype not in _FLOATS or not tensor.numel() or tensor.is_inference():
                continue
            stamp = (tensor.data_ptr(), tensor._version)
            if self._seen.get(name) != stamp:
                self._seen[name] = stamp
                changed.append((name, tensor))
        if not changed:
            return []
        # Of a tensor with NaN both are NaN.
        bounds = torch.stack([torch.stack(tensor.detach().aminmax()).double() for _, tensor in changed])
        sound = bounds.isfinite().all(dim=1).tolist()
        return [name for (name, _), is_sound in zip(changed, sound, strict=True) if not is_sound]


def digest_weights(model: Model) -> str:
    """Return sixteen letters and digits that differ for other weights, from a sample of each tensor.

    A digest of everything would read all weights; a training step changes every tensor nearly everywhere.
    """
    digest = hashlib.sha256()
    samples = []
    for name, tensor in named_tensors(model):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)};".encode())
        flat = tensor.detach().reshape(-1)
        count = min(_SAMPLES, flat.numel())
        place = torch.arange(count, device=flat.device) * (flat.numel() - 1) // max(count - 1, 1)
        samples.append(flat[place].to(torch.float64))
    if samples:
        digest.update(torch.cat(samples).cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
