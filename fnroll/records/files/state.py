"""The state of a rollout as a file: safetensors, with what is no tensor as JSON in its header."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors import torch as files
from torch import Tensor

from fnroll.checks import check_choice
from fnroll.core import types
from fnroll.core.tree import leaf_names, replace, tree_leaves
from fnroll.core.types import RolloutState, SamplingParams
from fnroll.models.base import Model
from fnroll.models.weights import digest_weights
from fnroll.records.files.atomic import write_file

STATE_FORMAT = "fnroll-state"
STATE_VERSION = 1
# Fields of a state that version 0.1 wrote under another name.
_RENAMED = {"weight_version": "weight_versions"}


def fingerprint(model: Model) -> dict[str, Any]:
    """Return by name what a state must know of its model; of the weights a digest."""
    return {
        "name": model.name,
        "vocab_size": model.vocab_size,
        "cache_shapes": [list(shape) for shape in model.cache_shapes],
        "dtype": str(model.dtype),
        "weights": digest_weights(model),
    }


def save_state(state: RolloutState, path: str | os.PathLike[str], *, model: Model | None = None) -> None:
    """Write a state; the file is whole, or it is the one that was there before.

    Args:
      state: of any step; pool, cache and all.
      path: best with the ending `.safetensors`.
      model: that the state is of; `load` then refuses another one.
    """
    names, leaves = leaf_names(state), tree_leaves(state)
    # A copy each: the file format wants leaves that share no memory.
    tensors = {name: leaf.detach().cpu().clone(memory_format=torch.contiguous_format)
               for name, leaf in zip(names, leaves, strict=True)}  # fmt: skip
    header = {
        "format": STATE_FORMAT,
        "version": STATE_VERSION,
        "model": None if model is None else fingerprint(model),
        "tree": _describe(state, iter(names)),
    }
    header["sha256"] = _digest(header, tensors)
    write_file(path, [files.save(tensors, {"fnroll": json.dumps(header)})])


def load_state(
    path: str | os.PathLike[str],
    *,
    model: Model | None = None,
    like: RolloutState | None = None,
    changed: tuple[str, ...] = (),
    device: torch.device | str | None = None,
) -> RolloutState:
    """Read what `save` wrote, bit for bit.

    Args:
      path: of the file.
      model: that the state must be of; None goes unchecked.
      like: a state whose shapes, stop ids and sampling parameters it must have; None goes unchecked.
      changed: sampling parameters that may differ from those of `like`, whose values are taken then; or
        "weights", which may be others than those of the model that the state was saved with.
      device: where the tensors go; None takes that of `model`, of `like`, or the CPU.

    Raises:
      ValueError: naming the file and what differs or is damaged.
    """
    header, tensors = _read(path)
    if model is not None:
        _check_model(path, header.get("model"), fingerprint(model), changed)
    if device is None:
        device = model.device if model is not None else like.stop_ids.device if like is not None else "cpu"
    moved = {name: tensor.to(device) for name, tensor in tensors.items()}
    try:
        state = _rebuild(header["tree"], moved)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: its description of the state does not fit ({error})") from error
    if not isinstance(state, RolloutState) or moved:
        raise ValueError(f"{path} is damaged: its tensors are not those that its description names")
    return state if like is None else _fit(path, state, like, changed)


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    data = Path(path).read_bytes()
    try:
        tensors = files.load(data)
        size = int.from_bytes(data[:8], "little")
        header = json.loads(json.loads(data[8 : 8 + size]).get("__metadata__", {}).get("fnroll", "null"))
    except (SafetensorError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no saved state, or damaged or half written ({error})") from error
    if not isinstance(header, dict) or header.get("format") != STATE_FORMAT:
        raise ValueError(f"{path} holds tensors, but no state of a rollout")
    if header.get("version") != STATE_VERSION:
        raise ValueError(f"{path} has version {header.get('version')!r}; this fnroll reads {STATE_VERSION}")
    if header.pop("sha256", None) != _digest(header, tensors):
        raise ValueError(f"{path} is damaged: the digest of what it holds differs from the one in its header")
    return header, tensors


def _digest(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)};".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _describe(node: Any, names: Iterator[str]) -> Any:
    """Return a tree as JSON: tensors by name, tuples as lists, other values as they are."""
    if isinstance(node, Tensor):
        return {"tensor": next(names)}
    if isinstance(node, tuple):
        return {"tuple": [_describe(item, names) for item in node]}
    if dataclasses.is_dataclass(node):
        fields = sorted(dataclasses.fields(node), key=lambda field: bool(field.metadata.get("static")))
        return {
            "type": type(node).__name__,
            "fields": {field.name: _describe(getattr(node, field.name), names) for field in fields},
        }
    return {"value": node}


def _rebuild(node: Mapping[str, Any], tensors: dict[str, Tensor]) -> Any:
    if "tensor" in node:
        return tensors.pop(node["tensor"])
    if "tuple" in node:
        return tuple(_rebuild(item, tensors) for item in node["tuple"])
    if "type" in node:
        own = node["fields"].items()
        fields = {_RENAMED.get(name, name): _rebuild(value, tensors) for name, value in own}
        if node["type"] == "Rows" and "sound" not in fields:  # of version 0.1
            fields["sound"] = torch.full_like(fields["cached"], types.Rows.ALL)
        return getattr(types, node["type"])(**fields)
    return node["value"]


def _check_model(
    path: str | os.PathLike[str], found: Any, own: Mapping[str, Any], changed: tuple[str, ...]
) -> None:
    if found is None:
        raise ValueError(f"{path} does not say of which model it is; load it without model=")
    for name, value in own.items():
        if name in found and found[name] != value and name not in changed:  # 0.1 knew no weights
            remedy = "; or say so: changed=('weights',)" if name == "weights" else ""
            raise ValueError(f"{path} is of another model: {name} is {found[name]!r}, here {value!r}{remedy}")


def _fit(
    path: str | os.PathLike[str], state: RolloutState, like: RolloutState, changed: tuple[str, ...]
) -> RolloutState:
    """Require the shapes, stop ids and sampling parameters of `like`; return the state, with what changes."""
    found = dict(zip(leaf_names(state), tree_leaves(state), strict=True))
    wanted = dict(zip(leaf_names(like), tree_leaves(like), strict=True))
    for name in {**wanted, **found}:
        shapes = [(list(leaves[name].shape), str(leaves[name].dtype)) if name in leaves else None
                  for leaves in (found, wanted)]  # fmt: skip
        if shapes[0] != shapes[1]:
            raise ValueError(f"{path} has another shape: {name} is {shapes[0]}, here {shapes[1]}")
    if not torch.equal(state.stop_ids, like.stop_ids):
        raise ValueError(f"{path} has stop ids {state.stop_ids.tolist()}, here {like.stop_ids.tolist()}")
    return replace(state, sampling=_fit_sampling(path, state.sampling, like.sampling, changed))


def _fit_sampling(
    path: str | os.PathLike[str], found: SamplingParams, own: SamplingParams, changed: tuple[str, ...]
) -> SamplingParams:
    tensors = [field.name for field in dataclasses.fields(own) if not field.metadata.get("static")]
    for name in changed:
        check_choice("load", "changed", name, [*tensors, "weights"])
    for name in tensors:
        left, right = getattr(found, name), getattr(own, name)
        if name not in changed and not torch.equal(left, right):
            line = int((left != right).nonzero()[0, 0])
            raise ValueError(
                f"{path} was drawn with {name} {left[line].item()} on line {line}, here it is "
                f"{right[line].item()}; give the same, or say so: changed=({name!r},)"
            )
    # The static fields say what the values need, so they come from where the values do.
    return own if set(changed) - {"weights"} else found
