"""Planted mistakes, each of which a named law must catch."""

import pytest
import torch
from hypothesis import Phase, given, settings

from fnroll.core import logits as logits_module
from fnroll.core import steps
from fnroll.core.model import Chunk
from fnroll.core.tree import replace
from fnroll.core.types import Rows
from property_tests.laws import records_equal_the_oracle, schedules_give_the_same_records
from property_tests.test_schedules import TOY_VOCABULARY, scheduled, tiny, toy, toy_forward


def oracle_law(case):
    """Records equal the oracle (toy model)."""
    records_equal_the_oracle(toy(), toy_forward, *case, tolerance=1e-6)


def schedule_law(case):
    """Two schedules give the same records (toy model)."""
    schedules_give_the_same_records(toy(), *case, tolerance=0.0)


def gpt2_law(case):
    """Records equal the oracle (GPT-2, whose learned positions hide no shift)."""
    records_equal_the_oracle(*tiny("gpt2"), *case, tolerance=1e-5)


def noise_keyed_by_row(scores, params, key, position, draw=logits_module.draw):
    return draw(scores, params, torch.stack([torch.arange(len(key))] * 2, dim=-1), position)


def noise_one_position_late(scores, params, key, position, draw=logits_module.draw):
    return draw(scores, params, key, position + 1)


def position_off_by_one(chunk):
    column = torch.arange(chunk.tokens.shape[1])
    return (chunk.start[:, None] + column + 1).clamp(min=0)


def log_prob_before_the_penalty(scores, params, history, process=logits_module.process):
    # The penalty moves the draw but is forgotten in the log-prob.
    plain = process(scores, replace(params, use_penalty=False), None)
    log_prob_before_the_penalty.plain = plain
    return process(scores, params, history)


def draw_with_plain_log_prob(scores, params, key, position, draw=logits_module.draw):
    token, _ = draw(scores, params, key, position)
    plain = log_prob_before_the_penalty.plain
    return token, plain.log_softmax(-1).gather(-1, token[:, None])[:, 0].float()


def pad_counted_as_history(logits, tokens, length, penalty, penalise=logits_module.penalise):
    return penalise(logits, tokens, torch.full_like(length, tokens.shape[1]), penalty)


def idle_rows_append_to_line_0(records, line, count, entries, append=steps.append):
    sink = records.length.shape[0] - 1
    return append(records, torch.where(line == sink, 0, line), count, entries)


def tokens_beyond_the_window(params, state, rows, end, model, width, window, feed=steps._feed, **options):
    return feed(params, state, rows, end, model, width, max(window - 4, 1), **options)


def stale_cache_of_the_last_owner(state, *, static=False, admit=steps.admit):
    new, admitted = admit(state, static=static)
    length = new.records.length[torch.where(admitted == Rows.IDLE, new.num_records, admitted)]
    claimed = torch.where(admitted == Rows.IDLE, new.rows.cached, (length - 1).clamp(min=0))
    return replace(new, rows=replace(new.rows, cached=claimed)), admitted


MUTANTS = {
    "noise keyed by row": (schedule_law, 2, [(steps, "draw", noise_keyed_by_row)]),
    "noise of the next position": (oracle_law, 1, [(steps, "draw", noise_one_position_late)]),
    "position off by one": (gpt2_law, 1, [(Chunk, "positions", property(position_off_by_one))]),
    "log-prob before the penalty": (
        oracle_law,
        1,
        [(steps, "process", log_prob_before_the_penalty), (steps, "draw", draw_with_plain_log_prob)],
    ),
    "pad counted as history": (oracle_law, 1, [(logits_module, "penalise", pad_counted_as_history)]),
    "idle rows append to line 0": (schedule_law, 2, [(steps, "append", idle_rows_append_to_line_0)]),
    "window too small": (oracle_law, 1, [(steps, "_feed", tokens_beyond_the_window)]),
    "stale cache of the last owner": (schedule_law, 2, [(steps, "admit", stale_cache_of_the_last_owner)]),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_mistake_is_caught(name, monkeypatch):
    law, count, patches = MUTANTS[name]
    for target, attribute, mutant in patches:
        monkeypatch.setattr(target, attribute, mutant)
    vocabulary = 48 if law is gpt2_law else TOY_VOCABULARY

    @settings(max_examples=60, phases=[Phase.generate], report_multiple_bugs=False)
    @given(scheduled(vocabulary, count))
    def check(case):
        law(case)

    with pytest.raises((AssertionError, IndexError, ValueError)):
        check()
