"""Immutable dataclasses that PyTorch sees as trees of tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import torch
from torch import Tensor
from torch.utils import _pytree

T = TypeVar("T")

tree_map = _pytree.tree_map
tree_flatten = _pytree.tree_flatten
tree_unflatten = _pytree.tree_unflatten


def static(**kwargs: Any) -> Any:
    """Declare a dataclass field that is part of the tree's structure, not a leaf of it."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


def _split_fields(cls: type) -> tuple[tuple[str, ...], tuple[str, ...]]:
    fields = dataclasses.fields(cls)
    leaves = tuple(f.name for f in fields if not f.metadata.get("static"))
    statics = tuple(f.name for f in fields if f.metadata.get("static"))
    return leaves, statics


def _rebuild(cls: type[T], names: tuple[str, ...], values: Any) -> T:
    # `__init__` is bypassed: a transform may put anything in a leaf's place (a batch dimension, a spec).
    new = object.__new__(cls)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(new, name, value)
    return new


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(static, dataclasses.field))
def pytree(cls: type[T]) -> type[T]:
    """Make `cls` a frozen, keyword-only dataclass and a node of `torch.utils._pytree`.

    Fields declared with `static()` belong to the tree's structure: they must be hashable and comparable,
    `tree_map` leaves them alone and a compiled function specialises on them. All others are children.
    Two trees are compared with `tree_equal`; `==` is identity, since comparing tensors is no yes or no.
    """
    new = dataclasses.dataclass(frozen=True, eq=False, kw_only=True)(cls)
    leaves, statics = _split_fields(new)

    def flatten(node: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(node, name) for name in leaves], tuple(getattr(node, name) for name in statics)

    def flatten_with_keys(node: Any) -> tuple[list[Any], tuple[Any, ...]]:
        children, context = flatten(node)
        keys = [_pytree.GetAttrKey(name) for name in leaves]
        return list(zip(keys, children, strict=True)), context

    def unflatten(children: Any, context: tuple[Any, ...]) -> T:
        return _rebuild(new, leaves + statics, [*children, *context])

    _pytree.register_pytree_node(
        new,
        flatten,
        unflatten,
        serialized_type_name=f"{new.__module__}.{new.__qualname__}",
        flatten_with_keys_fn=flatten_with_keys,
    )
    return new


replace = dataclasses.replace


def tree_leaves(tree: Any) -> list[Any]:
    """Return the leaves of `tree` in order, without the fields that hold None."""
    return [leaf for leaf in _pytree.tree_leaves(tree) if leaf is not None]


def leaf_names(tree: Any) -> list[str]:
    """Return the dotted path of every leaf of `tree`, in the order of `tree_leaves`."""
    paths, _ = _pytree.tree_flatten_with_path(tree)
    return [_pytree.keystr(path).lstrip(".") for path, leaf in paths if leaf is not None]


def tree_equal(a: Any, b: Any, *, close: Callable[[Tensor, Tensor], bool] = torch.equal) -> bool:
    """Say whether two trees have one structure and leaves that `close` accepts (default: bitwise)."""
    left, left_spec = tree_flatten(a)
    right, right_spec = tree_flatten(b)
    if left_spec != right_spec:
        return False
    return all(
        close(x, y) if isinstance(x, Tensor) and isinstance(y, Tensor) else x == y
        for x, y in zip(left, right, strict=True)
    )
