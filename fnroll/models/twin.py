"""A second module tree over the same tensors, so that a rollout never touches the caller's model."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from fnroll.models.linear import FewColumnsLinear

_NOT_TAKEN = {
    "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_is_full_backward_hook", "config",
    "training", "gradient_checkpointing", "_gradient_checkpointing_func", "forward",
}  # fmt: skip
"""Attributes that a twin has of its own, besides hooks. A forward that was wrapped on the instance is bound
to the caller's module; the class has its own."""
_REWRITTEN = ("dynamic", "longrope")
"""Kinds of rotary factors that transformers' own forward writes anew, after the longest position it saw."""
_MOST_ITEMS = 64


def _mark(value: Any, depth: int = 2) -> Any:
    """Return what differs when an attribute does: its content where that is plain, else its identity."""
    if isinstance(value, str | int | float | bool | type(None)):
        return type(value), value
    if depth and type(value) in (list, tuple, dict) and len(value) <= _MOST_ITEMS:
        items = value.items() if type(value) is dict else value
        return type(value), tuple(_mark(item, depth - 1) for item in items)
    return frozenset(map(_mark, value)) if type(value) is set else id(value)


def _mark_tensor(tensor: Tensor | None) -> Any:
    # Tensors of inference mode count no versions.
    return id(tensor), None if tensor is None or tensor.is_inference() else tensor._version


def _is_rewritten(module: nn.Module) -> bool:
    kind = vars(module).get("rope_type")
    kinds = kind.values() if isinstance(kind, dict) else [kind]
    return any(word in str(kind) for kind in kinds for word in _REWRITTEN)


def _reset_rotary(twin: nn.Module) -> None:
    """Take back what a long forward of the caller's left: its factors, and its length."""
    buffers, fields = twin._buffers, vars(twin)
    for name in [name for name in buffers if name.endswith("original_inv_freq")]:
        if (original := buffers[name]) is not None:
            buffers[name.replace("original_inv_freq", "inv_freq")] = original.clone()
    for name in [name for name in fields if name.endswith("max_seq_len_cached")]:
        fields[name] = fields.get("original_max_seq_len", fields[name])


@dataclass
class _Pair:
    """A module of the caller's, its twin, and how the caller's was when they were last in step."""

    source: nn.Module
    twin: nn.Module
    attributes: dict[str, Any] = field(default_factory=dict)
    buffers: dict[str, Any] = field(default_factory=dict)


class Twin:
    """A module tree in evaluation mode that shares the weights of `source`.

    Its configuration is its own and it carries no hooks, so nothing that is set on it shows in `source`:
    training mode, gradient checkpointing, attention implementation, hooks and generation defaults of the
    caller's model stay as they are. Buffers that are not saved with a model, to which some forwards write,
    are copies. In-place updates of weights are seen at once, all else that was set on `source` by `relink`.
    """

    def __init__(self, source: nn.Module) -> None:
        self.source = source
        self._originals: dict[int, tuple[Any, Any]] = {}
        """Modules and configurations of the caller's, and what stands for them in the twin, by id."""
        memo: dict[int, Any] = {}
        for module in source.modules():
            kind = FewColumnsLinear if type(module) is nn.Linear else type(module)
            self._originals[id(module)] = module, object.__new__(kind)
            config = getattr(module, "config", None)
            if config is not None:
                self._originals[id(config)] = config, copy.deepcopy(config, memo)
        self._pairs = {name: _Pair(module, self._stand_in(module)) for name, module in source.named_modules()}
        for pair in self._pairs.values():
            self._begin(pair)
        self.module: nn.Module = self._stand_in(source)

    def _stand_in(self, value: Any) -> Any:
        """Return what the twin has where the caller's model has `value`."""
        if type(value) in (list, tuple):
            return type(value)(map(self._stand_in, value)) if any(map(self._is_mapped, value)) else value
        return self._originals[id(value)][1] if self._is_mapped(value) else value

    def _is_mapped(self, value: Any) -> bool:
        return id(value) in self._originals

    def _begin(self, pair: _Pair) -> None:
        source, fields = pair.source, pair.twin.__dict__
        fields |= {key: OrderedDict() for key in vars(source) if "_hooks" in key}
        fields |= {
            "_parameters": dict(source._parameters),
            "_buffers": {},
            "_modules": {name: self._stand_in(child) for name, child in source._modules.items()},
            "_non_persistent_buffers_set": set(source._non_persistent_buffers_set),
            "_is_full_backward_hook": None,
            "training": False,
        }
        if "gradient_checkpointing" in vars(source):
            fields["gradient_checkpointing"] = False
        if "config" in vars(source):
            fields["config"] = self._stand_in(vars(source)["config"])
        list(self._take_attributes(pair))
        list(self._take_buffers(pair))
        if _is_rewritten(source):
            _reset_rotary(pair.twin)

    def _take_attributes(self, pair: _Pair) -> Iterator[str]:
        """Bring the twin's plain attributes into step; yield those that differ from the last time."""
        now = {
            key: value for key, value in vars(pair.source).items()
            if key not in _NOT_TAKEN and "_hooks" not in key
        }  # fmt: skip
        marks = {key: _mark(value) for key, value in now.items()}
        for key in pair.attributes.keys() - marks.keys():
            pair.twin.__dict__.pop(key, None)
            yield key
        for key, mark in marks.items():
            if key not in pair.attributes or pair.attributes[key] != mark:
                pair.twin.__dict__[key] = self._stand_in(now[key])
                yield key
        pair.attributes = marks

    def _take_buffers(self, pair: _Pair) -> Iterator[str]:
        """Bring the twin's buffers into step, as copies those that are not saved; yield those that differ."""
        source, buffers = pair.source, pair.twin._buffers
        marks = {}
        for key, value in source._buffers.items():
            is_own = value is not None and key in source._non_persistent_buffers_set
            marks[key] = _mark_tensor(value) if is_own else id(value)
            if key not in pair.buffers or pair.buffers[key] != marks[key]:
                buffers[key] = value.detach().clone() if is_own and value is not None else value
                yield key
        pair.buffers = marks

    def relink(self) -> list[str]:
        """Take up what the caller set on the model since the last time; return the names of that.

        Raises:
          ValueError: if the model is no longer made of the modules that the twin mirrors, or a forward of the
            caller's seems to have left something in it that later forwards depend on.
        """
        now = dict(self.source.named_modules())
        self._check_modules(now)
        changed = []
        for name, pair in self._pairs.items():
            if pair.source is not now[name]:
                self._replace(pair, now[name])
            changed += [f"{name}.{key}".lstrip(".") for key in self._take(name, pair)]
        return changed

    def _take(self, name: str, pair: _Pair) -> Iterator[str]:
        if _is_rewritten(pair.source):
            return
        mine, parameters = pair.twin._parameters, pair.source._parameters
        if replaced := [key for key, value in parameters.items() if mine.get(key) is not value]:
            mine.clear()
            mine |= parameters
            yield from replaced
        attributes = list(self._take_attributes(pair))
        buffers = list(self._take_buffers(pair))
        unsaved = [key for key in buffers if key in pair.source._non_persistent_buffers_set]
        if attributes and unsaved:
            raise ValueError(
                f"{type(self.source).__name__}: {', '.join(attributes + unsaved)} of {name or 'the model'} "
                f"changed since the rollout was made, by hand or by a forward that leaves something for the "
                f"next; make a new Rollout for it"
            )
        yield from attributes + buffers

    def _replace(self, pair: _Pair, source: nn.Module) -> None:
        self._originals[id(source)] = source, pair.twin
        pair.source = source

    def _check_modules(self, now: dict[str, nn.Module]) -> None:
        old = {name: pair.source for name, pair in self._pairs.items()}
        other = [name for name in now if name not in old or type(now[name]) is not type(old[name])]
        other += [name for name in old if name not in now]
        if other:
            raise ValueError(
                f"modules of {type(self.source).__name__} were added, exchanged or taken away since the "
                f"rollout was made (an adapter, perhaps): {', '.join(sorted(other)[:3])}; make a new Rollout "
                f"for it"
            )
