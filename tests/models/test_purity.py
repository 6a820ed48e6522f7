"""The adapter is as pure as the steps, and compiles to a step that takes no memory of the cache's size."""

import re
from functools import partial

import pytest
import torch
from torch._inductor.utils import run_and_get_code

from fnroll.compile.lower import compiled, donate
from fnroll.core import steps
from fnroll.core.rng import init_keys
from fnroll.core.tree import tree_leaves
from fnroll.core.types import init_state
from fnroll.models import causal_lm
from fnroll.models.zoo import TINY_MODELS, tiny_model

ALL = ("records", "rows", "queue", "cache")


def running(model, rows=3, max_length=24):
    """Return a state whose rows are admitted, with their prompts queued for prefill."""
    state = init_state(model.init_cache(rows, max_length), num_records=rows, stop_ids=torch.tensor([2]))
    line = torch.arange(rows)
    tokens = torch.arange(rows * 4).reshape(rows, 4) % 40 + 3
    keys = init_keys(0, 0, line, torch.zeros_like(line))
    count = torch.arange(rows) % 4 + 1
    state = steps.enqueue(state, line, tokens, count, torch.full((rows,), max_length), keys)
    return steps.admit(state)[0]


@pytest.mark.parametrize("name", TINY_MODELS)
def test_a_forward_writes_to_nothing_it_was_given(name):
    module = tiny_model(name)
    model = causal_lm(module)
    state = running(model)
    leaves = [*tree_leaves(state), *module.parameters(), *module.buffers()]
    versions, values = [leaf._version for leaf in leaves], [leaf.clone() for leaf in leaves]
    new = steps.prefill(None, state, torch.tensor([1, 0, 2]), model=model.fn, width=4, window=24)
    new, _ = steps.decode_step(None, new, model=model.fn, window=24)
    assert [leaf._version for leaf in leaves] == versions
    assert all(torch.equal(leaf, value) for leaf, value in zip(leaves, values, strict=True))
    assert new.records.length[:3].tolist() == [2, 3, 4]


def allocations(code):
    """Elements of every buffer that pieces of generated code take."""
    shapes = re.findall(r"empty_strided\w*\(\(([\d, ]*)\)", "".join(code))
    return [int(torch.tensor([int(n) for n in re.findall(r"\d+", s)] or [1]).prod()) for s in shapes]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [None, [2]], ids=["all", "some"])
def test_the_compiled_donated_prefill_takes_no_memory_of_the_cache_s_size(rows):
    model = causal_lm(tiny_model("llama", torch.float32))
    options = {"model": model.fn, "width": 4, "window": 64}
    given = [None if rows is None else torch.tensor(rows), torch.full((4 if rows is None else 1,), 4)]
    pure = steps.prefill(None, running(model, rows=4, max_length=509), *given, **options)
    step = compiled(donate(partial(steps.prefill, **options), ALL))
    new, code = run_and_get_code(step, None, running(model, rows=4, max_length=509), *given)
    sizes = allocations(code)
    assert sizes and max(sizes) < 4 * 510 * 2 * 8, sorted(sizes)[-3:]
    assert torch.equal(new.rows.cached, pure.rows.cached)
    for one, other in zip(tree_leaves(new.cache), tree_leaves(pure.cache), strict=True):
        assert torch.allclose(one[:, :-1], other[:, :-1], atol=1e-5)


@pytest.mark.slow
def test_the_compiled_donated_step_takes_no_memory_of_the_cache_s_size_and_recompiles_nothing():
    model = causal_lm(tiny_model("llama", torch.float32))
    state = running(model, rows=4, max_length=509)
    state = steps.prefill(None, state, torch.arange(4), model=model.fn, width=4, window=64)
    step = compiled(donate(partial(steps.decode_step, model=model.fn, window=64), ALL))
    plain = partial(steps.decode_step, model=model.fn, window=64)
    pure, _ = plain(None, state)
    (new, _), code = run_and_get_code(step, None, state)
    sizes = allocations(code)
    # A layer's keys are 4 x 510 x 2 x 8 numbers, the records' tokens 5 x 509.
    assert sizes and max(sizes) < 4 * 510 * 2 * 8, sorted(sizes)[-3:]
    with torch.compiler.set_stance("fail_on_recompile"):
        for _ in range(4):
            pure, _ = plain(None, pure)
            new, _ = step(None, new)
    assert torch.equal(new.records.tokens[:4], pure.records.tokens[:4])
    assert float((new.records.log_probs - pure.records.log_probs)[:4].abs().max()) < 1e-5
