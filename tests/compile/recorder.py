"""A recorder that does on a CPU what a CUDA graph does: the same operators again, on the same memory."""

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fnroll.core.tree import tree_leaves


def tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


class Tape(TorchDispatchMode):
    """Keeps each operator with the very tensors that it read and made, and undoes what it wrote."""

    def __init__(self):
        super().__init__()
        self.calls, self.before = [], {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = tensors((args, kwargs))
        if func._schema.is_mutable:
            for leaf in given:
                storage = leaf.untyped_storage()
                self.before.setdefault(storage.data_ptr(), (storage, storage.clone()))
        result = func(*args, **kwargs)
        storages = {leaf.untyped_storage().data_ptr() for leaf in given}
        made = [leaf for leaf in tensors(result) if leaf.untyped_storage().data_ptr() not in storages]
        if made or func._schema.is_mutable:  # a view is no work
            self.calls.append((func, args, kwargs, made))
        return result


class ReplayedTape:
    def __init__(self, calls):
        self.calls, self.replays = calls, 0

    def replay(self):
        self.replays += 1
        for func, args, kwargs, made in self.calls:
            for target, source in zip(made, tensors(func(*args, **kwargs)), strict=False):
                target.copy_(source)

    def reset(self):
        self.calls = None


def record(run):
    """Record as a capture does: nothing has happened afterwards."""
    with Tape() as tape:
        result = run()
    for storage, content in tape.before.values():
        storage.copy_(content)
    return result, ReplayedTape(tape.calls)
