"""The dry run of a capture: fnroll's steps pass it, and each planted mistake is named with its line."""

import re
from functools import partial

import pytest
import torch

from fnroll.compile.capture import CaptureError, check_capture, dry_run
from fnroll.compile.lower import donate
from fnroll.core import steps
from fnroll.core.tree import pytree, replace
from tests.core.helpers import running, toy_state

ALL = ("records", "rows", "queue", "cache")


def go_on(args, result):
    """The arguments of the next call: the same, with the state that came out."""
    state = result[0] if isinstance(result, tuple) else result
    return tuple(state if isinstance(value, type(state)) else value for value in args)


def hard(state):
    """All that sampling can do: top-k, top-p, penalty, noise, a kept support."""
    sampling = replace(
        state.sampling,
        top_k=torch.full_like(state.sampling.top_k, 5),
        top_p=torch.full_like(state.sampling.top_p, 0.9),
        repetition_penalty=torch.full_like(state.sampling.repetition_penalty, 1.2),
        max_top_k=8,
        use_top_p=True,
        use_penalty=True,
    )
    return replace(state, sampling=sampling)


def fnroll_steps():
    model, state = running()
    decode = partial(steps.decode_step, model=model.fn, window=16)
    yield "decode_step", decode, (model.params, state)
    model, state = running()
    yield "decode_step, hard", decode, (model.params, hard(state))
    model, state = running()
    prefill = partial(steps.prefill, model=model.fn, width=4, window=16)
    yield "prefill", prefill, (model.params, state, torch.tensor([1]), torch.tensor([4]))
    model, state = running()
    yield "prefill, all rows", prefill, (model.params, state, None, torch.tensor([4, 0]))
    yield "admit", steps.admit, (toy_state()[1],)
    yield "admit, static", partial(steps.admit, static=True), (toy_state()[1],)
    line = torch.tensor([0, 4])
    given = (torch.tensor([[1, 2], [0, 0]]), torch.tensor([2, 0]), torch.tensor([16, 0]))
    yield "append_tool", steps.append_tool, (running()[1], line, *given)


@pytest.mark.parametrize(("name", "step", "args"), list(fnroll_steps()), ids=lambda value: str(value)[:20])
def test_the_steps_of_fnroll_pass(name, step, args):
    check_capture(donate(step, ALL), args, advance=go_on)


@pytree
class Pair:
    a: torch.Tensor
    b: torch.Tensor


@pytree
class Holder:
    pair: Pair


def holder(device="cpu"):
    return Holder(pair=Pair(a=torch.arange(3.0, device=device), b=torch.ones(3, device=device)))


def grow(h, a):
    return replace(h, pair=replace(h.pair, a=a))


def reads_item(h):
    return grow(h, h.pair.a + h.pair.b[0].item())


def branches(h):
    return grow(h, h.pair.a + 1 if h.pair.b.sum() > 0 else h.pair.a)


def reads_list(h):
    return grow(h, h.pair.a * len(h.pair.b.tolist()))


def finds(h):
    return grow(h, h.pair.a + h.pair.b.nonzero().sum())


def selects(h):
    return grow(h, h.pair.a + h.pair.b[h.pair.a > 1].sum())


def fresh(h):
    return grow(h, h.pair.a + 1)


def longer(h):
    return grow(h, torch.cat([h.pair.a, h.pair.b]))


COUNT = [0]


def changes(h):
    COUNT[0] += 1
    return grow(h, h.pair.a + 1 if COUNT[0] % 2 else h.pair.a * 2)


def other_dtype(h):
    return grow(h, h.pair.a.double())


MISTAKES = {
    "item": (donate(reads_item, ("pair",)), "_local_scalar_dense", "reads the device", "item()"),
    "branch": (
        donate(branches, ("pair",)),
        "_local_scalar_dense|is_nonzero",
        "reads the device",
        "if h.pair",
    ),
    "tolist": (donate(reads_list, ("pair",)), "tolist", "reads the device", "tolist"),
    "nonzero": (donate(finds, ("pair",)), "nonzero", "depends on values", "nonzero"),
    "mask": (donate(selects, ("pair",)), "index", "depends on values", "h.pair.a > 1"),
    "a fresh buffer each call": (fresh, r"input argument 0 pair\.a", "another address", ""),
    "a shape that grows": (longer, r"input argument 0 pair\.a", r"changes from \(\(3,\)", ""),
    "another dtype": (other_dtype, r"input argument 0 pair\.a", "float64", ""),
    "another operator": (donate(changes, ("pair",)), "mul", "where the first call", "h.pair.a"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_named(name):
    step, operator, problem, line = MISTAKES[name]
    found = dry_run(step, (holder(),), advance=go_on)
    assert any(
        re.search(operator, one.operator)
        and re.search(problem, one.problem)
        and line in one.line
        and (not line or "test_capture.py" in one.line)
        for one in found
    ), found


def test_a_tensor_on_another_device_is_named():
    def mixes(h):
        return grow(h, h.pair.a + torch.tensor(2.0))

    found = dry_run(mixes, (holder("meta"),), advance=lambda args, _: args, device="meta")
    assert [one.problem for one in found] == ["has a tensor on cpu in a step on meta"]
    assert "torch.tensor(2.0)" in found[0].line


def test_the_error_lists_all_of_it():
    with pytest.raises(
        CaptureError, match=r"(?s)reads_item.*cannot be captured.*_local_scalar_dense.*item\(\)"
    ):
        check_capture(donate(reads_item, ("pair",)), (holder(),), advance=go_on)
