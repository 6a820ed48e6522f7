"""Nothing is computed twice: what is fed, counted by the model itself; the pool and its limits."""

import dataclasses
import re

import pytest
import torch

import fnroll
from fnroll.checks import parse_bytes
from fnroll.core import pool as pools
from fnroll.models import toy_model
from fnroll.models.chatter import chatter_model
from fnroll.models.zoo import tiny_model
from fnroll.rollout.cache import size as memory
from fnroll.rollout.driver.driver import Driver
from tests.rollout.scripts import call, make, request, set_model, tokenizer


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
      a: the first.
      b: the second.
    """
    return a + b


def counted(model):
    """The model, and a list that takes the number of tokens of each forward, its padding left out."""
    fed = []

    def fn(params, chunk, cache):
        fed.append(int((chunk.slots != cache.keys[0].shape[1] - 1).sum()))
        return model.fn(params, chunk, cache)

    return dataclasses.replace(model, fn=fn), fed


def talk(turns, messages=8):
    """Scripts of some turns: a tool is called in all but the last."""
    texts = [f"message {index} " + "of many words " * 3 for index in range(messages)]
    return {
        text: [*[call("add", a=index, b=turn) for turn in range(turns - 1)], "done"]
        for index, text in enumerate(texts)
    }


def roll(scripts, **config):
    with make(scripts, [add], **{"rows": 2, "max_turns": 64, **config}) as rollout:
        model, fed = counted(rollout.model)
        set_model(rollout, model)
        batch = rollout.generate(request(scripts), seed=3)
        return batch, rollout.profile, sum(fed)


def test_a_turn_that_comes_back_is_fed_its_tool_output_only():
    batch, profile, fed = roll(talk(4), pool=8)
    assert profile.fed_tokens == fed
    assert profile.least_tokens <= fed <= 1.1 * profile.least_tokens
    assert profile.unparked_tokens > fed and profile.fed_per_token < 3
    without, bare, all_fed = roll(talk(4), pool=0, share_prefixes=False)
    assert without.records == batch.records
    assert bare.fed_tokens == all_fed > 2 * fed and bare.unparked_tokens == bare.shared_tokens == 0


def test_what_is_fed_without_pool_or_sharing_is_every_context_of_every_turn():
    batch, profile, _ = roll(talk(3), pool=0, share_prefixes=False)
    expected = 0
    for record in batch:
        following = [*record.loss_mask[1:], False]
        sampled = enumerate(zip(record.loss_mask, following, strict=True), 1)
        ends = [end for end, (this, next_) in sampled if this and not next_]
        expected += sum(end - 1 for end in ends)
    assert profile.fed_tokens == expected


def group(n=8, prompts=4):
    """Groups of samples: a system prompt that all share, a question that the samples of it share."""
    system = [i % 40 + 1 for i in range(60)]
    records = [
        fnroll.RolloutRecord(prompt_ids=[*system, *[50 + index] * (20 + index)]) for index in range(prompts)
    ]
    return fnroll.RolloutRequest(records, n)


def test_rows_that_ended_between_two_polls_do_nothing():
    """With `poll_every=k` a row that ended is fed nothing, and changes nothing, until the device is read."""
    records, reads = [], []
    for poll_every in (1, 7):
        model, fed = counted(toy_model(64, sharpness=0.02, stop_ids=(0, 1, 2, 3)))
        config = fnroll.RolloutConfig(max_length=160, rows=8, progress=False, poll_every=poll_every)
        with fnroll.Rollout(model, None, config) as rollout:
            polls = rollout.generate(group()), rollout.profile
        records.append(polls[0].records)
        assert polls[1].fed_tokens == sum(fed)
        reads.append(polls[1].steps)
    assert records[0] == records[1] and reads[0] < reads[1]


@pytest.mark.parametrize("rows", [4, 16, 32])
def test_the_samples_of_a_prompt_are_fed_it_once(rows):
    model, fed = counted(toy_model(64, sharpness=0.02))
    config = fnroll.RolloutConfig(max_length=160, rows=rows, progress=False)
    with fnroll.Rollout(model, None, config) as rollout:
        batch = rollout.generate(group())
    profile = rollout.profile
    assert profile.fed_tokens == sum(fed) <= 1.1 * profile.least_tokens
    assert profile.shared_tokens > 25 * 60
    plain = fnroll.RolloutConfig(max_length=160, rows=rows, progress=False, share_prefixes=False)
    with fnroll.Rollout(toy_model(64, sharpness=0.02), None, plain) as rollout:
        assert rollout.generate(group()).records == batch.records
    assert rollout.profile.fed_tokens > sum(fed) + 20 * 60 and rollout.profile.shared_tokens == 0


def test_a_full_pool_keeps_the_longest():
    # Whoever returns queues behind the others, at the same step every time.
    order = {"returning": "back", "wait_for_tools": True}
    _, roomy, fed = roll(talk(4), pool=8, **order)
    batch, tight, more = roll(talk(4), pool=1, **order)
    again, none, most = roll(talk(4), pool=0, **order)
    assert fed < more < most and batch.records == again.records
    assert (roomy.pool_peak, tight.pool_peak, none.pool_peak) == (roomy.pool_peak, 1, 0)
    assert roomy.pool_bytes == 8 * tight.pool_bytes > 0 == none.pool_bytes


def addresses(rollout):
    cache, pool = rollout._buffers._kept
    return [leaf.data_ptr() for leaf in (*cache.keys, *cache.values, *pool.keys, *pool.values)]


def test_nothing_grows_over_1000_turns(monkeypatch):
    drivers, sizes = [], []

    def watch(driver, *args, poll=Driver._poll):
        poll(driver, *args)
        drivers[:] = [driver]
        sizes.append((len(driver.plan), len(driver.plan.slots)))

    monkeypatch.setattr(Driver, "_poll", watch)
    records = [fnroll.RolloutRecord(messages=[{"role": "user", "content": f"{i}"}]) for i in range(450)]
    config = fnroll.RolloutConfig(max_length=600, rows=16, max_turns=8, pool=5, progress=False)
    with fnroll.Rollout(chatter_model(calls=9, stops=9), tokenizer(), config, [add]) as rollout:
        batch = rollout.generate(fnroll.RolloutRequest(records))
        driver, buffers = drivers[0], addresses(rollout)
        assert sum(record.num_turns for record in batch) >= 1000
        assert max(plan for plan, _ in sizes) <= driver.state.num_records < 450
        assert max(slots for _, slots in sizes) <= 5
        lines = driver._lines
        assert len(driver.plan) == len(driver.plan.slots) == len(lines) == len(lines._line) == 0
        assert sorted(lines._free) == list(range(driver.state.num_records))
        assert len(driver.plan.slots._free) == 5 and not driver.ended and not lines.queued
        assert driver.state.pool.owner.tolist() == [-1] * 6
        rollout.generate(fnroll.RolloutRequest(records[:3]))
        assert addresses(rollout) == buffers


def test_by_default_turns_that_come_back_have_two_slots_for_each_row():
    with make(talk(2), [add], rows=3) as rollout:
        rollout.generate(request(talk(2)))
        assert rollout.profile.pool_bytes == 6 * memory.slot_bytes(rollout.model, 1500)
    config = fnroll.RolloutConfig(max_length=64, rows=3, progress=False)
    with fnroll.Rollout(toy_model(), None, config) as rollout:
        rollout.generate(fnroll.RolloutRequest([fnroll.RolloutRecord(prompt_ids=[1, 2])]))
        assert rollout.profile.pool_bytes == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2GB", 2 * 10**9),
        ("1.5 GiB", 3 * 2**29),
        ("512mib", 2**29),
        ("0B", 0),
        *[(text, None) for text in ("12", "GB", "-1GB", "2 XB")],
    ],
)
def test_sizes_as_text(text, expected):
    assert parse_bytes(text) == expected


def test_a_pool_given_in_bytes_has_as_many_slots_as_fit(monkeypatch):
    model = toy_model(16)
    one = memory.slot_bytes(model, 49)
    assert one == 2 * 8 * 50

    def count(pool, **more):
        return memory.count_slots(pool, model, rows=4, max_length=49, **{"multi_turn": True, **more})

    assert count("2 KB") == 2 and count("0B") == 0 and count(7) == 7 and count(None) == 8
    assert count(None, multi_turn=False) == 0
    with pytest.raises(
        ValueError, match=r"pool is '300B', 300 bytes; one slot of 49 tokens of toy takes 800"
    ):
        count("300B")
    monkeypatch.setattr(memory, "free_bytes", lambda _: 5000)
    # The rows take 3200 of it.
    assert count(2) == 2
    with pytest.raises(ValueError, match=r"pool is None: 8 slots .* has 5,000, room for 2 slots"):
        count(None)
    with pytest.raises(ValueError, match=r"3 slots and 4 rows .* take 5,600 bytes; cpu has 5,000"):
        count(3)


@pytest.mark.parametrize("pool", [10**12, "900TB"])
def test_a_pool_larger_than_memory_is_refused_before_anything_is_allocated(pool, monkeypatch):
    monkeypatch.setattr(pools, "init_pool", None)
    monkeypatch.setattr(fnroll.models.Model, "init_cache", None)
    config = fnroll.RolloutConfig(max_length=64, rows=3, progress=False, pool=pool)
    with pytest.raises(ValueError) as error:
        fnroll.Rollout(toy_model(), None, config)
    numbers = re.findall(r"[\d,]{10,}", str(error.value))
    assert len(numbers) >= 2 and "cpu has" in str(error.value) and "RolloutConfig.pool is" in str(error.value)


def roll_out_twice():
    """Roll out under old weights, then under new ones; return both, and the second by a fresh engine."""
    model, scripts = chatter_model(calls=7.5, stops=8.0), talk(2, messages=3)
    config = fnroll.RolloutConfig(max_length=300, rows=2, max_turns=3, progress=False, pool=4)
    requests = request(scripts, n=3)

    def fresh(params):
        with fnroll.Rollout(dataclasses.replace(model, params=params), tokenizer(), config, [add]) as rollout:
            return rollout.generate(requests, seed=5)

    old = tuple(leaf.clone() for leaf in model.params)
    new = (old[0] * 3 + 0.3, old[1].flip(0))
    with fnroll.Rollout(dataclasses.replace(model, params=old), tokenizer(), config, [add]) as rollout:
        first = rollout.generate(requests, seed=5)
        assert first.records == fresh(model.params).records
        for leaf, value in zip(old, new, strict=True):
            leaf.copy_(value)
        rollout.sync_weights(1)
        second = rollout.generate(requests, seed=5)
    return first, second, fresh(new)


def test_new_weights_take_over_nothing_of_the_old():
    """Case cache-01: rolled out, changed in place, rolled out again with everything shared and pooled."""
    first, second, expected = roll_out_twice()
    assert [record.tokens for record in second] == [record.tokens for record in expected]
    assert [record.log_probs for record in second] == [record.log_probs for record in expected]
    assert [record.tokens for record in first] != [record.tokens for record in second]


def roll_out_llama_twice():
    """The same with a model whose keys and values are made of its weights, as the toy's are not."""
    module = tiny_model("llama", torch.float64)
    config = fnroll.RolloutConfig(max_length=48, rows=2, progress=False)
    prompts = [[*range(1, 30), last] for last in (30, 31)]
    requests = fnroll.RolloutRequest([fnroll.RolloutRecord(prompt_ids=ids) for ids in prompts], 3)
    with fnroll.Rollout(module, None, config) as rollout:
        rollout.generate(requests, seed=5)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(1.3)
        rollout.sync_weights(1)
        second = rollout.generate(requests, seed=5)
        assert rollout.profile.shared_tokens
    with fnroll.Rollout(module, None, config) as rollout:
        fresh = rollout.generate(requests, seed=5)
    return [[record.tokens for record in batch] for batch in (second, fresh)]


def test_prefixes_of_old_weights_are_not_shared():
    second, fresh = roll_out_llama_twice()
    assert second == fresh


def test_a_plan_that_outlives_its_weights_is_caught(monkeypatch):
    plans, start = {}, Driver.__init__

    def keep(driver, *args, **options):
        start(driver, *args, **options)
        driver.plan = plans.setdefault(driver.steps, driver.plan)  # of the rollout, not of one call

    monkeypatch.setattr(Driver, "__init__", keep)
    second, fresh = roll_out_llama_twice()
    assert second != fresh
