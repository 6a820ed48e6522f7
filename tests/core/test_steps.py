"""The steps one by one, on the toy model whose answers are known."""

from functools import partial

import pytest
import torch

from fnroll.core import steps
from fnroll.core import types as t
from fnroll.core.tree import tree_leaves
from fnroll.core.types import Queue, Rows
from fnroll.models import toy_logits
from tests.core.helpers import enqueue, prefill_all, running, toy_state


def greedy(state):
    sampling = state.sampling
    greedy = steps.replace(sampling, temperature=torch.zeros_like(sampling.temperature))
    return steps.replace(state, sampling=greedy)


def tokens(state, line):
    return state.records.tokens[line, : state.records.length[line]].tolist()


def test_admission_is_in_order_and_only_into_free_rows():
    _, state = toy_state(rows=2)
    state, admitted = steps.admit(state)
    assert admitted.tolist() == [0, 1]
    assert state.records.status.tolist() == [t.RUNNING, t.RUNNING, t.PENDING, t.FREE, t.FREE]
    again, admitted = steps.admit(state)
    assert admitted.tolist() == [Rows.IDLE, Rows.IDLE]
    assert again.rows.record.tolist() == [0, 1]


def test_static_admission_waits_for_all_rows():
    _, state = toy_state(rows=2)
    state, _ = steps.admit(state)
    state = steps.finish(state, torch.tensor([0]), torch.tensor([t.COMPLETED]), torch.tensor([t.EOS]))
    assert steps.admit(state, static=True)[1].tolist() == [Rows.IDLE, Rows.IDLE]
    assert steps.admit(state)[1].tolist() == [2, Rows.IDLE]


def test_more_rows_than_lines_and_an_empty_queue():
    _, state = toy_state(prompts=((1,),), rows=5, lines=1)
    state, admitted = steps.admit(state)
    assert admitted.tolist() == [0, -1, -1, -1, -1]
    assert steps.admit(state)[1].tolist() == [-1] * 5


@pytest.mark.parametrize("width", [1, 2, 3, 8])
def test_decode_gives_the_toy_model_s_answers_for_any_prefill_width(width):
    prompt = [3, 1, 4, 1, 5]
    model, state = toy_state(prompts=(prompt,), rows=2, stop_ids=(12,))
    state, _ = steps.admit(greedy(state))
    for _ in range(5):
        state = steps.prefill(
            model.params, state, torch.tensor([0, 1]), model=model.fn, width=width, window=16
        )
    assert state.rows.cached.tolist() == [4, 0]
    expected = list(prompt)
    for _ in range(6):
        state, _ = steps.decode_step(model.params, state, model=model.fn, window=16)
        logits = toy_logits(expected, 13)
        expected.append(logits.index(max(logits)))
        assert tokens(state, 0) == expected
        if expected[-1] == 12:
            break
        assert state.rows.cached[0] == state.records.length[0] - 1


def test_extend_leaves_rows_that_are_not_prefilled_alone():
    model, state = toy_state(prompts=((1, 2, 3), (4,)), rows=2)
    state, _ = steps.admit(state)
    _, state = steps.extend(model.params, state, model=model.fn, window=16)
    assert state.rows.cached.tolist() == [0, 1]
    state = steps.sample(state, torch.zeros(2, 13))
    assert state.records.length[:2].tolist() == [3, 2]


@pytest.mark.parametrize("multi_turn", [False, True])
def test_a_turn_ends_by_a_stop_id_or_by_its_limit(multi_turn):
    _, state = running(prompts=((1, 2, 3), (4, 5)), stop_ids=(0, 7), limit=4)
    rows = steps.replace(state.rows, cached=state.records.length[:2])
    state = greedy(steps.replace(state, rows=rows))
    logits = torch.zeros(2, 13)
    logits[0, 9], logits[1, 7] = 5.0, 5.0
    state, ended = steps.retire(steps.sample(state, logits), multi_turn=multi_turn)
    assert ended.tolist() == [0, 1]
    stopped = t.WAITING if multi_turn else t.COMPLETED
    assert state.records.status[:2].tolist() == [t.TRUNCATED, stopped]
    assert state.records.reason[:2].tolist() == [t.LENGTH, t.EOS]
    assert state.records.turn[:2].tolist() == [1, 1]
    assert state.rows.record.tolist() == [Rows.IDLE] * 2


@pytest.mark.parametrize(
    ("limit", "script", "expected"),
    [
        (5, [9, 9, 0], ([9, 9, 0], t.COMPLETED, t.EOS)),  # the stop id is the last token allowed
        (9, [0], ([0], t.COMPLETED, t.EOS)),  # the stop id comes first
        (4, [9, 9, 0], ([9, 9], t.TRUNCATED, t.LENGTH)),  # one token before it
    ],
)
def test_stop_ids_and_budgets(limit, script, expected):
    """Case eos-02: the ending stop id is kept, trained, and told apart from a cut."""
    _, state = running(prompts=((1, 2),), rows=1, lines=1, limit=limit)
    state = greedy(state)
    for token in script:
        state = steps.replace(state, rows=steps.replace(state.rows, cached=state.records.length[:1]))
        logits = torch.zeros(1, 13)
        logits[0, token] = 5.0
        state, _ = steps.retire(steps.sample(state, logits))
        if state.rows.record[0] == Rows.IDLE:
            break
    ids, status, reason = expected
    assert tokens(state, 0) == [1, 2, *ids]
    assert state.records.loss_mask[0, : 2 + len(ids)].tolist() == [False, False] + [True] * len(ids)
    assert (state.records.log_probs[0, 2 : 2 + len(ids)] < 0).all()
    assert state.records.status[0] == status and state.records.reason[0] == reason


def test_a_prompt_that_ends_in_a_stop_id_does_not_end_its_turn():
    model, state = running(prompts=((1, 0),), rows=1, lines=1)
    state, ended = steps.retire(state)
    assert ended.tolist() == [Rows.IDLE]
    state, _ = steps.decode_step(model.params, state, model=model.fn, window=16)
    assert state.records.length[0] == 3


def waiting(limit=16):
    _, state = running(prompts=((1, 2, 3), (4,)), rows=2)
    state = steps.finish(
        state, torch.tensor([0, 1]), torch.tensor([t.WAITING] * 2), torch.tensor([t.EOS] * 2)
    )
    return enqueue(state, [2], [(9, 9)], limit)


def test_tool_output_is_appended_and_goes_to_the_front():
    state = waiting()
    out = torch.tensor([[7, 8, 9], [5, 0, 0]])
    state = steps.append_tool(state, torch.tensor([1, 0]), out, torch.tensor([3, 1]), torch.tensor([12, 14]))
    assert tokens(state, 1) == [4, 7, 8, 9] and tokens(state, 0) == [1, 2, 3, 5]
    assert not state.records.loss_mask[:2, 1:].any()
    assert state.records.limit[:2].tolist() == [14, 12]
    assert steps.admit(state)[1].tolist() == [1, 0]


def test_tool_output_that_does_not_fit_is_dropped_whole():
    state = waiting()
    out = torch.tensor([[7, 8, 9], [5, 6, 0]])
    state = steps.append_tool(state, torch.tensor([0, 1]), out, torch.tensor([3, 2]), torch.tensor([6, 16]))
    assert tokens(state, 0) == [1, 2, 3]
    assert state.records.status[:2].tolist() == [t.TRUNCATED, t.PENDING]
    assert state.records.reason[0] == t.TOOL_OUTPUT
    assert steps.admit(state)[1].tolist() == [1, 2]


def test_appending_is_associative():
    whole = steps.append_tool(
        waiting(), torch.tensor([0]), torch.tensor([[7, 8, 9]]), torch.tensor([3]), torch.tensor([16])
    )
    parts = waiting()
    for piece in ([7, 8], [9]):
        parts = steps.append_tool(
            parts, torch.tensor([0]), torch.tensor([piece]), torch.tensor([len(piece)]), torch.tensor([16])
        )
    assert tokens(parts, 0) == tokens(whole, 0) == [1, 2, 3, 7, 8, 9]


def test_padding_entries_change_nothing():
    state = waiting()
    before = [leaf.clone() for leaf in tree_leaves((state.records, state.rows))]
    sink = torch.tensor([state.num_records])
    new = steps.append_tool(state, sink, torch.tensor([[7]]), torch.tensor([1]), torch.tensor([16]))
    new = steps.finish(new, sink, torch.tensor([t.FAILED]), torch.tensor([t.ABORTED]))
    for old, leaf in zip(before, tree_leaves((new.records, new.rows)), strict=True):
        assert torch.equal(old[:-1], leaf[:-1])
    assert new.records.length[-1] == 0
    assert new.queue.ticket[:-1].tolist() == state.queue.ticket[:-1].tolist()


def test_a_line_that_is_used_again_remembers_nothing():
    model, state = running(prompts=((1, 2, 3), (4,)), rows=2)
    for _ in range(3):
        state, _ = steps.decode_step(model.params, state, model=model.fn, window=16)
    state = steps.finish(
        state, torch.tensor([0, 1]), torch.tensor([t.COMPLETED] * 2), torch.tensor([t.EOS] * 2)
    )
    state = enqueue(state, [0], [(8, 8)], 16)
    assert tokens(state, 0) == [8, 8]
    assert not state.records.loss_mask[0, :2].any() and (state.records.log_probs[0, :2] == 0).all()
    assert (state.records.weight_versions[0, :2] == -1).all()
    assert state.records.status[0] == t.PENDING and state.records.turn[0] == 0


STEPS = {
    "admit": lambda m, s: steps.admit(s),
    "prefill": lambda m, s: prefill_all(m, s),
    "extend": lambda m, s: steps.extend(m.params, s, model=m.fn, window=16),
    "sample": lambda m, s: steps.sample(s, torch.zeros(2, 13)),
    "retire": lambda m, s: steps.retire(s),
    "decode": partial(lambda m, s: steps.decode_step(m.params, s, model=m.fn, window=16)),
    "finish": lambda m, s: steps.finish(s, torch.tensor([0]), torch.tensor([5]), torch.tensor([2])),
    "append": lambda m, s: steps.append_tool(
        s, torch.tensor([0]), torch.tensor([[1]]), torch.tensor([1]), torch.tensor([16])
    ),
    "enqueue": lambda m, s: enqueue(s, [3], [(1, 2)], 16),
}


@pytest.mark.parametrize("name", STEPS)
def test_no_step_writes_to_its_input_and_the_old_state_stays_usable(name):
    model, state = running()
    leaves = tree_leaves(state)
    versions, values = [leaf._version for leaf in leaves], [leaf.clone() for leaf in leaves]
    first = STEPS[name](model, state)
    assert [leaf._version for leaf in leaves] == versions
    assert all(torch.equal(leaf, value) for leaf, value in zip(leaves, values, strict=True))
    for a, b in zip(tree_leaves(first), tree_leaves(STEPS[name](model, state)), strict=True):
        assert torch.equal(a, b)


def test_queue_state_after_everything_left():
    _, state = running()
    state = steps.finish(state, torch.tensor([2]), torch.tensor([t.FAILED]), torch.tensor([t.ABORTED]))
    assert (state.queue.ticket[:-1] == Queue.NO_TICKET).all()


def test_compose_runs_from_left_to_right():
    assert steps.compose(lambda x: x + 1, lambda x: x * 10)(2) == 30


def test_a_row_that_fills_a_shape_up_feeds_nothing_though_it_could():
    model, state = toy_state(((1, 2, 3), (4, 5)))
    state, _ = steps.admit(state)
    options = {"model": model.fn, "width": 4, "window": 16}
    alone = steps.prefill(model.params, state, torch.tensor([1]), **options)
    assert alone.rows.cached.tolist() == [0, 1]
    for rows, count in ((torch.tensor([1, 0]), [4, 0]), (None, [0, 4])):
        filled = steps.prefill(model.params, state, rows, torch.tensor(count), **options)
        assert filled.rows.cached.tolist() == [0, 1]
        for one, other in zip(tree_leaves(filled.cache), tree_leaves(alone.cache), strict=True):
            assert torch.equal(one[:, :-1], other[:, :-1])
