"""The host's plan: who copies what from where, and that a simulated cache then holds what it must."""

import random

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fnroll.rollout.cache import plan as plans
from fnroll.rollout.cache.plan import CachePlan, Copy, Feed, Parked, Placed, Tier
from fnroll.rollout.cache.prefixes import Prefixes, count_distinct, to_ids
from fnroll.rollout.cache.slots import Slots
from fnroll.rollout.driver.rows import LiveRows

LONG = list(range(100, 140))


def loaded(prompts, rows=4, slots=0, share=True):
    """A plan that knows some prompts, and these records placed in the first rows."""
    plan = CachePlan(rows, slots, 64, share=share)
    for line, prompt in enumerate(prompts):
        plan.load(line, prompt)
    return plan, [Placed(line, line, len(prompt)) for line, prompt in enumerate(prompts[:rows])]


def test_samples_of_a_prompt_are_fed_it_once():
    plan, placed = loaded([LONG] * 3)
    first, second = plan.admit(placed)
    assert first.feeds == [Feed(0, 0, 39)] and not first.shared
    assert second.shared == [Copy(0, 1, 39), Copy(0, 2, 39)] and not second.feeds


def test_a_common_prefix_is_fed_once_and_the_rest_after_it():
    plan, placed = loaded([[*LONG, 1, 2, 3], [*LONG, 4, 5], [*LONG, 1, 2, 9]])
    first, second = plan.admit(placed)
    assert first.feeds == [Feed(0, 0, 42)]
    assert second.shared == [Copy(0, 1, 40), Copy(0, 2, 42)]
    assert second.feeds == [Feed(1, 40, 1)]


def test_what_is_short_is_not_worth_a_copy():
    plan, placed = loaded([LONG[:16]] * 2)
    (only,) = plan.admit(placed)
    assert only.feeds == [Feed(0, 0, 15), Feed(1, 0, 15)]
    plan, placed = loaded([LONG] * 2, share=False)
    assert [feed.missing for feed in plan.admit(placed)[0].feeds] == [39, 39]


def test_rows_copy_what_other_rows_held_before_and_swap_if_need_be():
    one, two = LONG, LONG[::-1]
    plan, placed = loaded([one, two, two, one], rows=2)
    plan.admit(placed)
    plan.close(0), plan.close(1)
    (only,) = plan.admit([Placed(0, 2, 40), Placed(1, 3, 40)])
    assert only.shared == [Copy(1, 0, 39), Copy(0, 1, 39)] and not only.feeds


def test_a_turn_that_was_not_parked_finds_its_own_row_if_it_is_still_there():
    plan, placed = loaded([LONG, LONG[::-1]], rows=2)
    plan.admit(placed)
    plan.end_turn(0, 0, [*LONG, 1, 2, 3])
    plan.append(0, [4, 5])
    (only,) = plan.admit([Placed(0, 0, 45)])
    assert only.shared == [Copy(0, 0, 42)] and only.feeds == [Feed(0, 42, 2)]


def test_a_parked_turn_comes_back_and_others_copy_from_its_slot():
    plan, placed = loaded([LONG, LONG[::-1], LONG], rows=2, slots=1)
    plan.admit(placed)
    plan.end_turn(0, 0, [*LONG, 1, 2, 3])
    assert plan.park([Placed(0, 0, 43)]) == [Parked(0, 0, 0)]
    plan.append(0, [4, 5])
    # Neither row holds the prompt any more.
    plan.load(3, LONG[::-1])
    plan.admit([Placed(0, 3, 40)])
    (only,) = plan.admit([Placed(0, 2, 40), Placed(1, 0, 45)])
    assert only.pooled == [Copy(0, 0, 39)] and only.unparked == [Copy(0, 1, 42)]
    assert only.feeds == [Feed(1, 42, 2)]
    assert len(plan.slots) == 0 and plan.slots.peak == 1


def test_the_shortest_gives_way_when_the_pool_is_full():
    slots = Slots(2)
    assert slots.park(0, 50) == 0 and slots.park(1, 20) == 1
    assert slots.park(2, 10) is None  # it is the shortest itself
    assert slots.park(3, 30) == 1 and slots.take(1) is None
    assert slots.take(3) == (1, 30) and slots.take(0) == (0, 50)
    assert slots.park(5, 9) == 0 and slots.park(4, 9) == 1
    assert slots.park(6, 9) == 1 and slots.take(4) is None  # of equals, the smallest line
    assert Slots(0).park(0, 5) is None


def test_a_turn_that_gives_way_within_one_poll_is_not_parked():
    plan, placed = loaded([LONG, [*LONG, 1]], rows=2, slots=1)
    plan.admit(placed)
    plan.end_turn(0, 0, [*LONG, 5]), plan.end_turn(1, 1, [*LONG, 1, 5])
    assert plan.park([Placed(0, 0, 41), Placed(1, 1, 42)]) == [Parked(1, 0, 1)]


@pytest.mark.parametrize(
    ("prompts", "count"),
    [
        ([], 0),
        ([[1]], 1),
        ([[1, 2, 3]] * 4, 3),
        ([[1, 2, 3], [1, 2], [1, 4], [5]], 5),
        ([[1, 2], [1, 2, 3]], 3),
    ],
)
def test_distinct_tokens_are_those_of_the_trie(prompts, count):
    assert count_distinct(prompts) == count


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=8))
def test_distinct_tokens_are_the_distinct_prefixes(prompts):
    assert count_distinct(prompts) == len({tuple(p[: i + 1]) for p in prompts for i in range(len(p))})


@given(
    st.lists(st.lists(st.integers(0, 1), max_size=6), min_size=1, max_size=5),
    st.lists(st.integers(0, 1), max_size=6),
)
def test_the_longest_common_prefix_is_found(held, ids):
    table = Prefixes(len(held), 8)
    for place, content in enumerate(held):
        table.put(place, to_ids([1] * 8))
        table.put(place, to_ids(content))

    def common(a, b):
        return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))

    lengths = [common(content, ids) for content in held]
    place, length = table.find(to_ids(ids))
    assert length == max(lengths) and lengths[place] == length


class Cache:
    """What the rows and slots really hold, in plain lists; the plan's tiers are carried out on it."""

    def __init__(self, rows, slots):
        self.rows, self.slots, self.cached = [[]] * rows, [[]] * slots, [0] * rows

    def bring(self, tier, known):
        before, cached = list(self.rows), self.cached
        for source, row, length in tier.shared:
            self.rows[row], cached[row] = before[source][:length], length
        # A slot that is free keeps its content until it is given to another turn.
        for slot, row, length in tier.pooled + tier.unparked:
            self.rows[row], cached[row] = self.slots[slot][:length], length
        for row, start, missing in tier.feeds:
            assert cached[row] == start
            self.rows[row] = self.rows[row][:start] + known[row][start : start + missing]
            cached[row] += missing


@st.composite
def stories(draw):
    """Rows, slots, and what happens: records are admitted, end their turns and come back in any order."""
    ids = st.lists(st.integers(0, 1), min_size=1, max_size=5)
    prompts = draw(st.lists(ids, min_size=1, max_size=9))
    return (
        draw(st.integers(1, 4)),
        draw(st.integers(0, 3)),
        prompts,
        random.Random(draw(st.integers(0, 2**32))),
    )


def tell(story):
    """Carry a story out, and check every row that the plan fills, token by token."""
    rows, slots, prompts, dice = story
    plan, cache = CachePlan(rows, slots, 64, share=dice.random() < 0.8), Cache(rows, slots)
    known, queue, waiting, turns = {}, [], [], {}
    for line, prompt in enumerate(prompts):
        plan.load(line, prompt)
        known[line] = list(prompt)
        queue.append(line)
        turns[line] = 0
    running = {}
    while queue or running or waiting:
        free = [row for row in range(rows) if row not in running]
        count = dice.randint(0, min(len(free), len(queue)))
        placed = []
        for row in sorted(dice.sample(free, count)):
            line = queue.pop(0)
            running[row], cache.cached[row] = line, 0
            placed.append(Placed(row, line, len(known[line])))
        for tier in plan.admit(placed):
            cache.bring(tier, {row: known[line] for row, line in running.items()})
        for row, line, length in placed:
            assert cache.rows[row][: length - 1] == known[line][: length - 1]
            assert cache.cached[row] == length - 1
        ended = []
        for row, line in list(running.items()):
            if dice.random() < 0.5:
                continue
            sampled = [dice.randint(0, 1) for _ in range(dice.randint(1, 4))]
            known[line] += sampled
            cache.rows[row] = known[line][:-1]
            del running[row]
            turns[line] += 1
            if turns[line] == 3:
                plan.close(line)
            else:
                plan.end_turn(row, line, known[line])
                ended.append(Placed(row, line, len(known[line])))
        for row, slot, line in plan.park(ended):
            assert cache.rows[row] == known[line][:-1]
            cache.slots[slot] = cache.rows[row]
        waiting += [line for _, line, _ in ended]
        for line in list(waiting):
            if dice.random() < 0.5:
                waiting.remove(line)
                if dice.random() < 0.1:
                    plan.close(line)
                    continue
                output = [dice.randint(0, 1) for _ in range(dice.randint(1, 3))]
                plan.append(line, output)
                known[line] += output
                queue.append(line)
    assert len(plan) == len(plan.slots) == 0 and plan.slots.peak <= slots


@pytest.fixture
def share_all(monkeypatch):
    monkeypatch.setattr(plans, "LEAST_SHARED", 1)


@given(stories())
def test_every_row_holds_its_record_after_its_tiers(share_all, story):
    """A wrong source, length or order shows as other ids."""
    tell(story)


def one_token_too_many(prefixes, ids, among=None, find=Prefixes.find):
    place, common = find(prefixes, ids, among)
    return place, min(common + 1, len(ids))


def a_full_pool_gives_a_slot_to_two(slots, line, length, park=Slots.park):
    if not slots._free and slots._held:
        shortest = min(slots._held, key=lambda held: slots._held[held][1])
        slots._held[line] = (slots._held[shortest][0], length)
        return slots._held[line][0]
    return park(slots, line, length)


def one_copy_after_the_other(cache, tier, known, bring=Cache.bring):
    for one in tier.shared:
        bring(cache, Tier(shared=[one]), known)
    bring(cache, Tier(pooled=tier.pooled, unparked=tier.unparked, feeds=tier.feeds), known)


def test_a_row_that_another_was_copied_to_is_known_by_what_it_holds_now():
    plan = CachePlan(3, 0, 64, share=True)
    for line, first in enumerate((1, 2)):
        plan.load(line, [first] * 40)
    plan.admit([Placed(0, 0, 40), Placed(1, 1, 40)])
    plan.move(1, 0)
    plan.load(2, [1] * 40)
    plan.load(3, [2] * 40)
    [tier] = plan.admit([Placed(2, 2, 40)])
    assert not tier.shared  # nobody holds the first prompt any more
    plan.close(1)
    [tier] = plan.admit([Placed(1, 3, 40)])
    assert [(copy.source, copy.target) for copy in tier.shared] == [(0, 1)]


def test_a_row_that_a_short_record_took_is_known_for_nothing():
    """Too short to be copied from itself; and what the row held before is written over."""
    plan = CachePlan(2, 0, 64, share=True)
    for line, prompt in enumerate(([1] * 40, [5] * 4, [1] * 40)):
        plan.load(line, prompt)
    plan.admit([Placed(0, 0, 40)])
    plan.close(0)
    plan.admit([Placed(0, 1, 4)])
    [tier] = plan.admit([Placed(1, 2, 40)])
    assert not tier.shared and tier.feeds == [Feed(1, 0, 39)]


def test_records_outside_the_first_rows_move_to_free_ones_in_order():
    live = LiveRows(6)
    for row in (0, 2, 4, 5):
        live.admit(row, 10 + row, 7, 9)
    assert live.plan_moves(4) == [(4, 1), (5, 3)] and live.highest == 5
    for move in live.plan_moves(4):
        live.move(*move)
    assert live.lines.tolist() == [10, 14, 12, 15] and live.highest == 3
    assert (len(live), live.longest, live.most_left, live.plan_moves(4)) == (4, 7, 2, [])


def what_rows_held_is_forgotten_late(plan, placed, admit=CachePlan.admit):
    kept = plan.held._ids.copy(), plan.held._length.copy()
    tiers = admit(plan, placed)
    plan.held._ids[:], plan.held._length[:] = kept
    return tiers


def a_record_follows_before_its_leader_is_fed(plan, placed, admit=CachePlan.admit):
    first, *rest = admit(plan, placed) or [Tier()]
    copies = [copy for tier in rest for copy in tier.shared]
    feeds = [feed for tier in rest for feed in tier.feeds]
    return [Tier(first.shared + copies, first.pooled, first.unparked, first.feeds + feeds)]


MUTANTS = {
    "one token too many is shared": (Prefixes, "find", one_token_too_many),
    "a slot for two": (Slots, "park", a_full_pool_gives_a_slot_to_two),
    "one copy after the other": (Cache, "bring", one_copy_after_the_other),
    "what rows held is forgotten late": (CachePlan, "admit", what_rows_held_is_forgotten_late),
    "a record follows before its leader is fed": (
        CachePlan,
        "admit",
        a_record_follows_before_its_leader_is_fed,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_mistake_is_caught(share_all, monkeypatch, name):
    monkeypatch.setattr(*MUTANTS[name])

    @settings(max_examples=200, phases=[Phase.generate], report_multiple_bugs=False)
    @given(stories())
    def check(story):
        tell(story)

    with pytest.raises((AssertionError, TypeError)):
        check()


def test_a_plan_keeps_no_more_than_the_records_in_flight():
    """1000 turns: what the host remembers is as much as at the start."""
    plan = CachePlan(4, 2, 512, share=True)
    sizes = set()
    for turn in range(1000):
        line = turn % 4
        plan.load(line, [turn % 7] * 20)
        plan.admit([Placed(line, line, 20)])
        plan.end_turn(line, line, [turn % 7] * 30)
        plan.park([Placed(line, line, 30)])
        plan.close(line)
        sizes.add((len(plan), len(plan.slots), len(plan.slots._free)))
    assert sizes == {(0, 0, 2)}
    assert isinstance(plan.held._ids, np.ndarray) and plan.held._ids.shape == (6, 512)
