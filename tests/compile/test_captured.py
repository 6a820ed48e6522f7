"""A captured step, on a recorder that replays operators on a CPU, and where there is one on a CUDA device."""

import logging
from functools import partial

import pytest
import torch

from fnroll.compile.graph import captured
from fnroll.compile.lower import ConsumedError, donate
from fnroll.core import steps
from fnroll.core.tree import replace, tree_equal, tree_leaves, tree_map
from tests.compile.recorder import record
from tests.compile.test_lower import ALL, decode
from tests.core.helpers import running, unsunk


def step_of(model, **options):
    return captured(donate(decode(model), ALL), recorder=record, **options)


def both(step, model, pure, state, calls):
    for _ in range(calls):
        pure, expected = steps.decode_step(model.params, pure, model=model.fn, window=16)
        state, ended = step(model.params, state)
        assert torch.equal(ended, expected)
        assert tree_equal(unsunk(pure), unsunk(state))
    return pure, state


def test_replays_give_the_values_of_the_pure_step_in_the_old_memory():
    model, pure = running(limit=14)
    _, state = running(limit=14)
    addresses = [leaf.data_ptr() for name in ALL for leaf in tree_leaves(getattr(state, name))]
    step = step_of(model)
    _, state = both(step, model, pure, state, 7)
    assert step.num_captures == 1 and step._graph.replays == 6
    assert [leaf.data_ptr() for name in ALL for leaf in tree_leaves(getattr(state, name))] == addresses


def test_another_state_and_other_parameters_run_the_same_graph():
    model, pure = running(limit=12)
    _, state = running(limit=12)
    step = step_of(model)
    both(step, model, pure, state, 3)
    for temperature in (0.5, 2.0):
        _, pure = running(limit=12)
        _, state = running(limit=12)
        warm = replace(state.sampling, temperature=torch.full_like(state.sampling.temperature, temperature))
        pure, state = replace(pure, sampling=warm), replace(state, sampling=warm)
        _, after = both(step, model, pure, state, 3)
        assert after.sampling.temperature is warm.temperature  # what passed through is the caller's
        assert float(warm.temperature[0]) == temperature
    assert step.num_captures == 1


def test_outputs_outlive_the_next_replay():
    model, state = running(limit=6)
    step, ended = step_of(model), []
    for _ in range(4):
        state, one = step(model.params, state)
        ended.append((one, one.clone()))
    assert all(torch.equal(one, kept) for one, kept in ended)


def test_a_replayed_state_is_consumed():
    model, state = running()
    step = step_of(model)
    for _ in range(3):
        old = state
        state, _ = step(model.params, state)
        with pytest.raises(ConsumedError, match="consumed"):
            steps.admit(old)


def test_weights_in_place_need_nothing_and_replaced_ones_are_captured_again(caplog):
    model, pure = running(limit=16)
    _, state = running(limit=16)
    step = step_of(model)
    pure, state = both(step, model, pure, state, 3)
    model.params.mul_(0.5)
    pure, state = both(step, model, pure, state, 2)
    assert step.num_captures == 1
    object.__setattr__(model, "params", model.params.clone() * 3)
    with caplog.at_level(logging.WARNING, logger="fnroll.compile.graph"):
        both(step, model, pure, state, 3)
    assert step.num_captures == 2
    assert [r.message for r in caplog.records if "replaced" in r.message] == [
        "captured(donate(decode_step)): parameter [0] was replaced; the step is captured again"
    ]


def test_weights_that_the_step_is_not_given_are_watched():
    weight = torch.ones(1)
    model, state = running()
    step = step_of(model, weights=lambda: [("w", weight)])
    for _ in range(3):
        state, _ = step(model.params, state)
    weight = torch.ones(1)
    for _ in range(2):
        state, _ = step(model.params, state)
    assert step.num_captures == 2


def test_release_gives_the_graph_back_and_the_step_goes_on():
    model, pure = running(limit=16)
    _, state = running(limit=16)
    step = step_of(model)
    pure, state = both(step, model, pure, state, 3)
    graph = step._graph
    step.release()
    assert graph.calls is None and step._graph is None and step._inputs == []
    both(step, model, pure, state, 3)
    assert step.num_captures == 2


def test_the_recorder_sees_a_buffer_that_moved():
    """The oracle of these tests: replay without the copy into the graph's inputs is wrong."""
    value, out = torch.zeros(2), torch.zeros(2)
    _, graph = record(lambda: out.copy_(value + 1))
    assert out.tolist() == [0, 0]
    value.fill_(4)
    graph.replay()
    value = torch.full((2,), 9.0)
    graph.replay()
    assert out.tolist() == [5, 5]


@pytest.mark.cuda
def test_a_cuda_graph_gives_the_values_of_the_pure_step():
    model, pure = running(limit=14)
    _, state = running(limit=14)
    to = partial(tree_map, lambda leaf: leaf.cuda())
    pure, state, params = to(pure), to(state), model.params.cuda()
    step = captured(donate(decode(model), ALL))
    for _ in range(6):
        pure, expected = steps.decode_step(params, pure, model=model.fn, window=16)
        state, ended = step(params, state)
        assert torch.equal(ended, expected)
        assert tree_equal(unsunk(pure), unsunk(state), close=partial(torch.allclose, atol=1e-6))
    assert step.num_captures == 1
    step.release()
