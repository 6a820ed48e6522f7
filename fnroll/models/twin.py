"""A second module tree over the same tensors, so that a rollout never touches the caller's model."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any, cast

from torch import nn

from fnroll.models.linear import FewColumnsLinear

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _own_configs(module: nn.Module) -> dict[int, Any]:
    """Copy the model's configuration; return each copy by the id of what it is a copy of."""
    memo: dict[int, Any] = {}
    copies: dict[int, Any] = {}
    for child in module.modules():
        config = getattr(child, "config", None)
        if config is not None and id(config) not in copies:
            copies[id(config)] = copy.deepcopy(config, memo)
    return copies


def make_twin(module: nn.Module) -> nn.Module:
    """Return a module tree in evaluation mode that shares all parameters and buffers with `module`.

    Its configuration is its own and it carries no hooks, so nothing that is set on it shows in `module`:
    training mode, gradient checkpointing, attention implementation, hooks and generation defaults of the
    caller's model stay as they are. In-place weight updates are seen at once, replaced ones by `relink`.
    """
    configs = _own_configs(module)
    twins: dict[int, nn.Module] = {}

    def clone(source: nn.Module) -> nn.Module:
        if id(source) in twins:
            return twins[id(source)]
        kind = FewColumnsLinear if type(source) is nn.Linear else type(source)
        twin = twins[id(source)] = object.__new__(kind)
        fields = {key: configs.get(id(value), value) for key, value in vars(source).items()}
        fields["_parameters"] = dict(source._parameters)
        fields["_buffers"] = dict(source._buffers)
        fields["_modules"] = {
            name: None if child is None else clone(child) for name, child in source._modules.items()
        }
        fields.update({name: OrderedDict() for name in _HOOKS}, training=False)
        # A forward that was wrapped on the instance is bound to the caller's module; the class has its own.
        fields.pop("forward", None)
        if "gradient_checkpointing" in fields:
            fields["gradient_checkpointing"] = False
        twin.__dict__.update(fields)
        return twin

    return clone(module)


def relink(twin: nn.Module, module: nn.Module) -> list[str]:
    """Point the twin at the tensors that `module` has now; return the names of those it had replaced.

    Raises:
      ValueError: if `module` is no longer made of the modules that the twin mirrors.
    """
    if [name for name, _ in module.named_modules()] != [name for name, _ in twin.named_modules()]:
        raise ValueError(
            f"modules of {type(module).__name__} were added or taken away since the rollout was made (an "
            f"adapter, perhaps); make a new Rollout for it"
        )
    replaced = []
    for (name, source), mirror in zip(module.named_modules(), twin.modules(), strict=True):
        for kind in ("_parameters", "_buffers"):
            for key, value in cast(dict[str, Any], getattr(source, kind)).items():
                if getattr(mirror, kind).get(key) is not value:
                    getattr(mirror, kind)[key] = value
                    replaced.append(f"{name}.{key}" if name else key)
    return replaced
