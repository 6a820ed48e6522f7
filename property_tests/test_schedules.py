"""Schedule invariance: a record is a function of its identity and of nothing else."""

import dataclasses
import functools

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fnroll.config import SamplingConfig
from fnroll.models import causal_lm, toy_logits, toy_model
from fnroll.models.zoo import TINY_MODELS, forward_of, tiny_model
from fnroll.rollout.cache import plan
from fnroll.rollout.driver import driver
from fnroll.testing.strategies import Schedule, Work, schedules, works
from property_tests.laws import records_equal_the_oracle, schedules_give_the_same_records

TOY_VOCABULARY = 11


@pytest.fixture(autouse=True)
def _share_all(monkeypatch):
    """The prompts here are short and the rows few: share whatever is common, wait for half of the rows."""
    monkeypatch.setattr(plan, "LEAST_SHARED", 1)
    monkeypatch.setattr(driver, "ROWS_TO_JOIN", 2)


@functools.cache
def toy():
    return toy_model(TOY_VOCABULARY, stop_ids=(0, 3))


def toy_forward(ids):
    return torch.tensor(toy_logits(ids, TOY_VOCABULARY), dtype=torch.float64)


@functools.cache
def tiny(name, dtype=torch.float64):
    module = tiny_model(name, dtype)
    return causal_lm(module), forward_of(module)


def scheduled(vocab_size, count=1, max_length=20):
    """Draw work and `count` schedules of it."""
    return works(vocab_size, max_length).flatmap(
        lambda work: st.tuples(st.just(work), *[schedules(len(work.prompts))] * count)
    )


@given(scheduled(TOY_VOCABULARY))
def test_toy_records_equal_the_oracle(case):
    # Log-probs are stored in float32, whose last place is 2.4e-7 between 2 and 4 and grows from there.
    records_equal_the_oracle(toy(), toy_forward, *case, tolerance=1e-6)


@given(scheduled(TOY_VOCABULARY, count=2))
def test_toy_records_are_bitwise_equal_for_all_schedules(case):
    schedules_give_the_same_records(toy(), *case, tolerance=0.0)


# All of it at once, on every model: top-k and top-p at temperature 1, a penalty, unequal prompts.
HARD = (
    Work(
        prompts=((5,), (7, 8, 9, 10, 11, 12, 13, 14, 15), (4, 4, 6), (1, 30, 31, 32, 33)),
        n=2,
        sampling=SamplingConfig(temperature=1.0, top_k=20, top_p=0.95, repetition_penalty=1.1),
        max_length=20,
        seed=7,
        step=1,
    ),
    Schedule(rows=3, batching="continuous", poll_every=2, order=(2, 0, 3, 1), split=1),
)


@pytest.mark.parametrize("name", TINY_MODELS)
@settings(max_examples=8)
@example(HARD)
@given(scheduled(48))
def test_records_equal_the_oracle_in_float64(name, case):
    # Most of these models normalise in float32 inside, which sets the floor.
    records_equal_the_oracle(*tiny(name), *case, tolerance=1e-5)


@pytest.mark.parametrize("name", TINY_MODELS)
@settings(max_examples=12)
@example((*HARD, Schedule(rows=8, batching="static", poll_every=1, order=(0, 1, 2, 3), split=0)))
@given(scheduled(48, count=2))
def test_records_are_equal_for_all_schedules_in_float64(name, case):
    schedules_give_the_same_records(tiny(name)[0], *case, tolerance=1e-5)


@pytest.mark.parametrize("name", TINY_MODELS)
@settings(max_examples=5)
@example(HARD)
@given(scheduled(48))
def test_records_equal_the_oracle_in_float32(name, case):
    # Tokens are equal unless the two best were closer than the error of float32; the margins of those that
    # split are reported by `--hypothesis-show-statistics`.
    records_equal_the_oracle(*tiny(name, torch.float32), *case, tolerance=1e-4, tie=1e-3)


@pytest.mark.parametrize("name", TINY_MODELS)
@settings(max_examples=5)
@example(HARD)
@given(scheduled(48))
def test_shared_prefixes_change_no_token_in_float32(name, case):
    work, schedule = case
    ways = (dataclasses.replace(schedule, share_prefixes=share) for share in (True, False))
    schedules_give_the_same_records(tiny(name, torch.float32)[0], work, *ways, tolerance=1e-5)
