"""A dry run of CUDA graph capture: what capture would refuse or replay wrongly, found without a GPU."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fnroll.compile.lower import Donated, Step
from fnroll.core.tree import leaf_names, tree_leaves

_READS = "reads the device on the host, which a capture cannot wait for"
_DEPENDS = "has a shape that depends on values"
_REFUSED = {
    "_local_scalar_dense": _READS,
    "equal": _READS,
    "is_nonzero": _READS,
    "nonzero": _DEPENDS,
    "masked_select": _DEPENDS,
    "_unique": _DEPENDS,
    "_unique2": _DEPENDS,
    "unique_dim": _DEPENDS,
    "unique_consecutive": _DEPENDS,
    "bincount": _DEPENDS,
}
# On a CPU these pass by the dispatcher.
_UNSEEN = ("tolist", "numpy", "cpu", "__array__")


class CaptureError(RuntimeError):
    """A step that cannot be captured; the message lists what it does, and where."""


@dataclass(frozen=True)
class Finding:
    """One thing that a capture would refuse, or that its replay would do wrongly."""

    operator: str
    """The operator, `aten.nonzero.default` for example, or the input."""
    problem: str
    line: str = ""
    """The innermost line outside of torch, `file:number: text`; empty for an input."""

    def __str__(self) -> str:
        return f"{self.operator} {self.problem}" + (f", at {self.line}" if self.line else "")


def _line() -> str:
    for frame in reversed(traceback.extract_stack()):
        if "/torch/" not in frame.filename and frame.filename != __file__:
            return f"{frame.filename}:{frame.lineno}: {frame.line}"
    return ""


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


class _Calls(TorchFunctionMode):
    """Notes the methods that the dispatcher does not see."""

    def __init__(self, findings: list[Finding]) -> None:
        super().__init__()
        self.findings = findings

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _UNSEEN:
            self.findings.append(Finding(f"Tensor.{func.__name__}", _READS, _line()))
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operators that a capture refuses, and what each call of the step runs."""

    def __init__(self, findings: list[Finding], device: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.findings, self.device = findings, device
        self.trace: list[tuple[str, tuple[Any, ...], str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = _tensors((args, kwargs))
        problem = _REFUSED.get(func._overloadpacket.__name__)
        if func._overloadpacket.__name__ == "index" and any(leaf.dtype.itemsize == 1 for leaf in given[1:]):
            problem = f"by a mask {_DEPENDS}"
        if problem is not None:
            self.findings.append(Finding(str(func), problem, _line()))
        result = func(*args, **(kwargs or {}))
        made = _tensors(result)
        # A scalar on the CPU goes into a kernel as a number; anything else would have to be copied.
        foreign = {leaf.device.type for leaf in (*made, *(leaf for leaf in given if leaf.dim()))}
        for kind in sorted(foreign - {self.device}):
            problem = f"has a tensor on {kind} in a step on {self.device}"
            self.findings.append(Finding(str(func), problem, _line()))
        shapes = tuple((tuple(leaf.shape), leaf.dtype) for leaf in made)
        self.trace.append((str(func), shapes, _line()))
        return result


def _compare(first: list[Any], later: list[Any]) -> list[Finding]:
    """Report the first operator in which a later call differs from the first."""
    for one, other in zip(first, later, strict=False):
        if one[:2] != other[:2]:
            problem = f"makes {other[1]} where the first call had {one[0]} make {one[1]}"
            return [Finding(other[0], problem, other[2])]
    if len(first) != len(later):
        rest = (later if len(later) > len(first) else first)[min(len(first), len(later))]
        return [Finding(rest[0], "runs in one call and not in another", rest[2])]
    return []


def _inputs(step: Step, args: tuple[Any, ...]) -> list[tuple[str, Tensor]]:
    """Return what must stay in place: the donated buffers, or all inputs of a step that donates none."""
    if isinstance(step, Donated):
        state = step.find(args)
        parts = [(f"{name}.", getattr(state, name)) for name in step.names]
    else:
        parts = [(f"argument {place} ", value) for place, value in enumerate(args)]
    return [
        (f"{prefix}{name}".rstrip(" ."), leaf)
        for prefix, part in parts
        for name, leaf in zip(leaf_names(part), tree_leaves(part), strict=True)
        if isinstance(leaf, Tensor)
    ]


def _describe(leaf: Tensor) -> tuple[Any, ...]:
    return tuple(leaf.shape), leaf.stride(), leaf.dtype


def _moved(first: list[Any], later: list[Any]) -> list[Finding]:
    """Report inputs of a later call that are not those of the first."""
    found = []
    for (name, what, address), (_, other, place) in zip(first, later, strict=True):
        if what != other:
            found.append(Finding(f"input {name}", f"changes from {what} to {other} between calls"))
        elif address != place:
            found.append(Finding(f"input {name}", "is at another address in a later call: donate it"))
    return found


def dry_run(
    step: Step,
    args: tuple[Any, ...],
    *,
    advance: Callable[[tuple[Any, ...], Any], tuple[Any, ...]],
    calls: int = 3,
    device: str = "cpu",
) -> list[Finding]:
    """Run a step a few times as a CUDA graph would be used, and report what its capture would refuse.

    Found are host reads, shapes that depend on values, operators and shapes that change from call to call,
    inputs that change or move between calls, and tensors that are not on the device.

    Args:
      step: not compiled; the state that it is given is consumed if it donates.
      args: of the first call.
      advance: `(args, result) -> args` of the next call.
      calls: at least 2.
      device: type of the device that the step runs on.
    """
    findings: list[Finding] = []
    # `kept` holds the inputs of all calls, so that none can be given the address of an earlier one.
    traces, inputs, kept = [], [], []
    for _ in range(calls):
        named = _inputs(step, args)
        inputs.append([(name, _describe(leaf), leaf.data_ptr()) for name, leaf in named])
        with ExitStack() as stack:
            stack.enter_context(_Calls(findings))
            watch = stack.enter_context(_Operators(findings, device))
            result = step(*args)
        traces.append(watch.trace)
        kept.append(named)
        args = advance(args, result)
    for trace, later in zip(traces[1:], inputs[1:], strict=True):
        findings += [*_moved(inputs[0], later), *_compare(traces[0], trace)]
    return list(dict.fromkeys(findings))


def check_capture(step: Step, args: tuple[Any, ...], **options: Any) -> None:
    """Raise what `dry_run` reports of a step, with its arguments and options.

    Raises:
      CaptureError: one line for each finding.
    """
    if found := dry_run(step, args, **options):
        name = getattr(step, "__name__", type(step).__name__)
        lines = "\n".join(f"  {finding}" for finding in found)
        raise CaptureError(f"{name} cannot be captured as a CUDA graph:\n{lines}")
