"""Donation and compilation: the same values, no new memory, no recompile, and clear refusals."""

import re
from functools import partial

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor.utils import run_and_get_code

from fnroll.compile.lower import ConsumedError, DonationError, GraphBreakError, Settled, compiled, donate
from fnroll.core import steps
from fnroll.core.tree import pytree, replace, tree_equal, tree_leaves
from tests.core.helpers import running, toy_state, unsunk

ALL = ("records", "rows", "queue", "cache")


def decode(model, window=16):
    return partial(steps.decode_step, model=model.fn, window=window)


@pytest.mark.parametrize("names", [("cache", "records"), ALL])
def test_a_donated_step_gives_the_values_of_the_pure_one_in_the_old_memory(names):
    model, pure = running()
    _, given = running()
    addresses = {name: [leaf.data_ptr() for leaf in tree_leaves(getattr(given, name))] for name in names}
    step = donate(decode(model), names)
    for _ in range(4):
        pure, ended = steps.decode_step(model.params, pure, model=model.fn, window=16)
        given, donated_ended = step(model.params, given)
        assert torch.equal(ended, donated_ended)
        assert tree_equal(unsunk(pure), unsunk(given))
        for name in names:
            assert [leaf.data_ptr() for leaf in tree_leaves(getattr(given, name))] == addresses[name]


def test_a_consumed_state_says_so():
    model, state = running()
    donate(decode(model))(model.params, state)
    with pytest.raises(ConsumedError, match=r"records.*donated to decode_step.*without `donate`"):
        steps.admit(state)
    with pytest.raises(ConsumedError, match=r"cache\.keys"):
        state.cache.keys[0]
    with pytest.raises(ConsumedError, match="consumed"):
        torch.add(state.records.length, 1)


def test_an_undonated_part_stays_usable():
    model, state = running()
    sampling = state.sampling
    donate(decode(model))(model.params, state)
    assert state.sampling is sampling and sampling.temperature.sum() > 0


@pytree
class Pair:
    a: torch.Tensor
    b: torch.Tensor


@pytree
class Holder:
    pair: Pair


def holder():
    return Holder(pair=Pair(a=torch.zeros(3), b=torch.ones(3)))


def test_a_swap_is_refused_by_name():
    swap = donate(lambda h: replace(h, pair=Pair(a=h.pair.b, b=h.pair.a)), ("pair",))
    with pytest.raises(DonationError, match=r"the new pair\.a is the old pair\.b"):
        swap(holder())


def test_a_view_of_a_donated_buffer_is_refused():
    peek = donate(lambda h: (h, h.pair.a[:1]), ("pair",))
    with pytest.raises(DonationError, match="view of a donated buffer"):
        peek(holder())


def test_a_missing_field_is_named():
    with pytest.raises(DonationError, match="pool"):
        donate(lambda h: h, ("pool",))(holder())


def test_decode_step_is_one_graph_that_never_recompiles():
    counter = CompileCounterWithBackend("aot_eager")
    model, state = running(limit=12)
    step = compiled(donate(decode(model), ALL), backend=counter)
    _, pure = running(limit=12)
    with torch.compiler.set_stance("default"):
        state, _ = step(model.params, state)
    pure, _ = steps.decode_step(model.params, pure, model=model.fn, window=16)
    with torch.compiler.set_stance("fail_on_recompile"):
        for version in range(1, 9):
            # New weights, new parameters: values, never shapes.
            state = replace(state, version=torch.tensor(version, dtype=torch.int32))
            pure = replace(pure, version=state.version)
            state, _ = step(model.params, state)
            pure, _ = steps.decode_step(model.params, pure, model=model.fn, window=16)
    assert counter.frame_count == 1
    assert tree_equal(unsunk(pure), unsunk(state), close=lambda a, b: torch.allclose(a, b, atol=1e-6))


def test_another_state_of_the_same_shapes_runs_the_same_graph():
    """A compiled step is tied to shapes, never to the tensors it saw first."""
    counter = CompileCounterWithBackend("aot_eager")
    model, first = running(limit=12)
    step = compiled(donate(decode(model), ALL), backend=counter)
    step(model.params, first)
    kept = [running(limit=12) for _ in range(2)]  # at once, so that no address is used again
    with torch.compiler.set_stance("fail_on_recompile"):
        for _, state in kept:
            after, _ = step(model.params, state)
            assert (after.records.length[:2] > 0).all()
    assert counter.frame_count == 1


def test_the_compiler_knows_that_what_is_written_stays_where_it_is():
    """CUDA graphs of Inductor write in place only to inputs that are said to have a static address."""
    written, pinned = set(), set()

    def look(graph, inputs):
        metadata = torch._guards.TracingContext.get().fw_metadata
        written.update(place for place, info in enumerate(metadata.input_info) if info.mutates_data)
        pinned.update(metadata.static_input_indices)
        return make_boxed_func(graph.forward)

    model, state = toy_state()
    step = compiled(donate(decode(model), ALL), backend=aot_autograd(fw_compiler=look))
    with torch.no_grad():
        step(model.params, state)
    assert written and written <= pinned


def test_a_compiled_swap_is_refused_too():
    swap = donate(lambda h: replace(h, pair=Pair(a=h.pair.b, b=h.pair.a)), ("pair",))
    with pytest.raises(DonationError, match=r"^donate.*the new pair\.a is the old pair\.b"):
        compiled(swap, backend="eager")(holder())


def test_an_output_that_is_also_a_new_leaf_outlives_the_next_step():
    def grow(h):
        larger = h.pair.a + 1
        return replace(h, pair=Pair(a=larger, b=h.pair.b)), larger

    step = donate(grow, ("pair",))
    after, first = step(holder())
    after, second = step(after)
    assert (first.tolist(), second.tolist(), after.pair.a.tolist()) == ([1.0] * 3, [2.0] * 3, [2.0] * 3)


def test_each_composed_pipeline_has_its_own_recompile_limit():
    for count in range(12):
        pipeline = steps.compose(lambda x: x + 1, lambda x, c=count: x * c)
        assert compiled(pipeline, backend="eager")(torch.ones(2)).tolist() == [2.0 * count] * 2


def test_a_settled_step_checks_what_it_has_not_seen():
    """Guards are skipped for arguments like earlier ones, and for no others."""
    factor = {"weight": torch.full((2,), 3.0)}
    counter = CompileCounterWithBackend("aot_eager")
    step = Settled(compiled(lambda x: x * factor["weight"].sum() * x.shape[0], backend=counter))
    for size, kind in ((2, torch.float32), (3, torch.float32), (2, torch.float64), (3, torch.float32)):
        x = torch.ones(size, dtype=kind)
        assert torch.equal(step(x), torch.full((size,), 6.0 * size, dtype=kind))
    assert counter.frame_count == len(step.seen) == 3
    factor["weight"] = torch.full((4,), 1.0)
    step.seen.clear()  # what a replaced parameter needs
    assert torch.equal(step(torch.ones(2)), torch.full((2,), 8.0))


@pytest.mark.slow
def test_donated_decode_allocates_nothing_of_the_cache_s_size():
    """The generated code takes no buffer as large as the cache or the records; undonated, it must."""
    _, state = toy_state(rows=4, lines=4, max_length=509)
    model, _ = toy_state()
    _, code = run_and_get_code(compiled(donate(decode(model, 64), ALL)), model.params, state)
    sizes = allocations("".join(code))
    assert sizes and max(sizes) < 4 * 510, sizes
    _, code = run_and_get_code(
        compiled(decode(model, 64)), model.params, toy_state(rows=4, max_length=509)[1]
    )
    assert max(allocations("".join(code))) >= 4 * 510


def allocations(code):
    """Elements of every buffer that a piece of generated code takes."""
    found = re.findall(r"empty_strided\w*\(\(([\d, ]*)\)", code)
    return [int(torch.tensor([int(n) for n in re.findall(r"\d+", shape)] or [1]).prod()) for shape in found]


def branches_on_a_value(h):
    if h.pair.a.sum() > 0:
        return h
    return replace(h, pair=Pair(a=h.pair.a + 1, b=h.pair.b))


def reads_a_value(h):
    return replace(h, pair=Pair(a=h.pair.a + len(h.pair.b.tolist()) + h.pair.b.numpy()[0], b=h.pair.b))


def helps(h):
    return reads_a_value(h)


@pytest.mark.parametrize(
    ("step", "line"),
    [
        (branches_on_a_value, r"test_lower\.py:\d+ in branches_on_a_value: if h\.pair\.a\.sum\(\) > 0:"),
        (donate(branches_on_a_value, ("pair",)), r"in branches_on_a_value: if h\.pair"),
        (partial(helps), r"test_lower\.py:\d+ in reads_a_value: return replace"),
    ],
    ids=["plain", "donated", "helper"],
)
def test_a_graph_break_names_the_step_and_the_line(step, line):
    name = "donate\\(branches_on_a_value\\)" if hasattr(step, "names") else r"(branches_on_a_value|helps)"
    with pytest.raises(GraphBreakError, match=rf"^{name} cannot be compiled as one graph: .*, at .*{line}"):
        compiled(step, backend="eager")(holder())
