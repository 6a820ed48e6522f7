"""How a step runs: compiled, or with donated buffers; as a captured CUDA graph, see `graph.py`.

The only file of the core that names the compiler. A step stays a pure function; what is decided here is
whether its result takes new memory.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._dynamo.exc import Unsupported, UserError

from fnroll.core.buffer import donating
from fnroll.core.tree import leaf_names, replace, tree_flatten, tree_leaves, tree_unflatten

Step = Callable[..., Any]


class ConsumedError(RuntimeError):
    """A state was used after a donated step had taken its buffers."""


class DonationError(ValueError):
    """A step's result does not allow its old buffers to be written over."""


class GraphBreakError(RuntimeError):
    """A step that the compiler cannot trace as one graph; the message names the step and the line."""


class _Consumed:
    """Stands where a donated tree was; any use of it says what happened."""

    def __init__(self, tree: str, field: str, step: str) -> None:
        self._tree, self._field, self._step = tree, field, step

    def _fail(self, *_: Any, **__: Any) -> NoReturn:
        raise ConsumedError(
            f"`{self._tree}.{self._field}` of this state was donated to {self._step} and is consumed: go on "
            f"with the state that the step returned, or call the step without `donate` to keep both"
        )

    def __getattr__(self, _: str) -> NoReturn:
        self._fail()

    __getitem__ = __iter__ = __len__ = __call__ = _fail

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        found = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, cls)]
        found[0]._fail()


def name_of(step: Any) -> str:
    """Return a step's name for messages, whatever it is wrapped in."""
    if isinstance(step, Donated):
        return step.__name__
    while hasattr(step, "func"):  # functools.partial
        step = step.func
    return getattr(step, "__qualname__", type(step).__name__)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Donated:
    """A step that writes its result into the buffers of the state it was given. Made by `donate`."""

    def __init__(self, step: Step, names: Sequence[str], run: Step | None = None) -> None:
        self.step, self.names = step, tuple(names)
        self.run = self.absorb if run is None else run
        """Runs the step in the memory of its state, without consuming the state's value."""
        self._is_checked = False
        self._step_name = name_of(step)
        self.__name__ = f"donate({self._step_name})"

    def _is_state(self, value: Any) -> bool:
        fields = getattr(type(value), "__dataclass_fields__", ())
        return all(name in fields for name in self.names)

    def find(self, values: Any) -> Any:
        """Return the state among arguments or results."""
        for value in values if isinstance(values, tuple) else (values,):
            if self._is_state(value):
                return value
        raise DonationError(
            f"{self.__name__}: no argument or result is a state that has the fields {', '.join(self.names)}"
        )

    def leaves(self, state: Any) -> list[Tensor]:
        """Return the donated buffers."""
        return [leaf for name in self.names for leaf in tree_leaves(getattr(state, name))]

    def absorb(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step, then move each new leaf into the old one's memory; this is what is compiled."""
        state = self.find(args)
        before = [tree_flatten(getattr(state, name))[0] for name in self.names]
        old = [leaf for leaves in before for leaf in leaves]
        if torch.compiler.is_compiling():
            result = self.step(*args, **kwargs)
        else:
            with donating(old):
                result = self.step(*args, **kwargs)
        after = self.find(result)
        behind = [tree_flatten(getattr(after, name)) for name in self.names]
        new = [leaf for leaves, _ in behind for leaf in leaves]
        self._check_sources(state, old, new)
        for target, source in zip(old, new, strict=True):
            if source is not target:
                target.copy_(source)
        moved = [tree_unflatten(leaves, spec) for leaves, (_, spec) in zip(before, behind, strict=True)]
        kept = replace(after, **dict(zip(self.names, moved, strict=True)))
        return kept if result is after else tuple(kept if value is after else value for value in result)

    def _check_sources(self, state: Any, old: list[Tensor], new: list[Tensor]) -> None:
        if len(old) != len(new):
            raise DonationError(f"{self.__name__}: the step changes how many buffers the state has")
        for index, leaf in enumerate(new):
            if leaf is old[index]:
                continue
            # Compared with `is`: `id` of a tensor would tie a compiled step to that one object.
            owner = next((place for place, other in enumerate(old) if leaf is other), None)
            if owner is not None:
                names = [f"{name}.{leaf}" for name in self.names for leaf in leaf_names(getattr(state, name))]
                raise DonationError(
                    f"{self.__name__}: the new {names[index]} is the old {names[owner]}; a donated "
                    f"buffer may only become itself or a value computed from itself"
                )

    def _check_outputs(self, result: Any, kept: list[Tensor]) -> None:
        mine, storages = {id(leaf) for leaf in kept}, {_storage(leaf) for leaf in kept}
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and id(leaf) not in mine and _storage(leaf) in storages:
                raise DonationError(
                    f"{self.__name__}: an output is a view of a donated buffer, which the next step writes "
                    f"over; return a value computed from it"
                )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step; the state that went in is consumed."""
        state = self.find(args)
        if not self._is_checked and self.run != self.absorb:
            self._pin(state)
        result = self.run(*args, **kwargs)
        if not self._is_checked:  # what an output is a view of depends on the step, not on the values
            self._check_outputs(result, self.leaves(state))
            self._is_checked = True
        self.consume(state, self.find(result))
        return result

    def _pin(self, state: Any) -> None:
        """Say that the buffers stay where they are: CUDA graphs of Inductor refuse to write to others."""
        for leaf in (leaf for leaf in self.leaves(state) if isinstance(leaf, Tensor)):
            torch._dynamo.mark_static_address(leaf, guard=False)

    def consume(self, state: Any, new: Any) -> None:
        """Make every use of the donated parts of `state` an error."""
        for name in self.names:
            tree = getattr(state, name)
            if tree is getattr(new, name):
                continue
            fields = vars(tree)  # of a frozen dataclass, which has no other way in
            for field in fields:
                fields[field] = _Consumed(name, field, self._step_name)


def donate(step: Step, names: Sequence[str] = ("cache", "records")) -> Donated:
    """Let a step write its result into the memory of the state it is given.

    The step stays pure; the state that went in is consumed, as with a donated buffer in JAX, and its use
    raises `ConsumedError`. `compiled(donate(step))` compiles the writes into place.

    Args:
      step: a pure step; the state is the first of its positional arguments that has all `names`.
      names: fields of the state whose buffers are given up.

    Raises:
      DonationError: when called, if a new buffer is another old one, or an output is a view of one.
    """
    return Donated(step, names)


def compiled(step: Step | Donated, *, backend: str | Callable[..., Any] = "inductor", **options: Any) -> Step:
    """Compile a step as one graph for fixed shapes.

    Args:
      step: a pure step, its static options bound with `functools.partial`, or a donated one.
      backend: of `torch.compile`.
      **options: of `torch.compile`.

    Raises:
      GraphBreakError: when first called, if the step cannot be traced whole; it names the step's line.
    """

    def lower(function: Step) -> Step:
        # Each step its own recompile limit: pipelines joined by `compose` all share one code object.
        compile_: Any = torch.compile
        run: Step = compile_(
            function, fullgraph=True, dynamic=False, isolate_recompiles=True, backend=backend, **options
        )

        @functools.wraps(run)
        def named(*args: Any, **kwargs: Any) -> Any:
            try:
                return run(*args, **kwargs)
            except (Unsupported, UserError) as error:
                if refused := re.search(r"DonationError\(['\"](.+)['\"]\)", str(error)):
                    raise DonationError(refused[1]) from error
                raise GraphBreakError(_say_break(name_of(step), error)) from error

        return named

    if isinstance(step, Donated):
        return Donated(step.step, step.names, run=lower(step.absorb))
    return lower(step)


class Settled:
    """A compiled step that evaluates its guards only where a call may differ from those before.

    The compiler checks each parameter of a model before each call, which takes milliseconds. Shapes, types
    and static values of the arguments are compared here, much faster; what they do not show, a parameter
    that was replaced, is for the caller to say, by `seen.clear()`.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self.seen: set[Any] = set()
        """What the arguments were like in calls that were checked."""

    def __call__(self, *args: Any) -> Any:
        """Run the step."""
        leaves, spec = tree_flatten(args)
        like = (spec, *((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves))
        if like not in self.seen:
            result = self.step(*args)
            self.seen.add(like)
            return result
        with torch.compiler.set_stance(skip_guard_eval_unsafe=True):
            return self.step(*args)


def _say_break(step: str, error: Exception) -> str:
    """Return the first sentence of the compiler's error, and the innermost line of user code."""
    text = str(error)
    places = re.findall(r'File "(.+?)", line (\d+), in (\S+)\n\s*(.+)', text)
    own = [place for place in places if "/torch/" not in place[0]]
    where = "{}:{} in {}: {}".format(*(own or places)[-1]) if places else "an unknown line"
    return (
        f"{step} cannot be compiled as one graph: {text.strip().splitlines()[0].rstrip('.')}, at {where}; "
        f"a step must not branch on, read or print values of tensors"
    )
