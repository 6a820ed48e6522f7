"""A replay repeats the schedule, not only the answers: turns come back before the same decode steps."""

import json

import pytest

import fnroll
from fnroll.models.tiny import TINY_TOOLS, load_tiny, make_tasks
from fnroll.tools.log import ToolEvent, read_log
from fnroll.tools.result import ToolResult, TurnKey
from fnroll.tools.schedule import Schedule

OK = ToolResult("x", "ok", 0.0)


def events(*boundaries):
    keys = [TurnKey(number, 0, 0) for number in range(len(boundaries))]
    return {
        key: (ToolEvent(key, 0, "t", {}, OK, boundary),)
        for key, boundary in zip(keys, boundaries, strict=True)
    }


def answered(*numbers):
    return [(TurnKey(number, 0, 0), (OK,)) for number in numbers]


def numbers(items):
    return [key.prompt_id for key, _ in items]


def test_turns_are_held_until_their_step_and_come_in_the_order_of_the_log():
    schedule = Schedule(events(2, 5, 2))
    due, held = schedule.part(answered(2, 1, 0), 1)
    assert (numbers(due), numbers(held)) == ([], [2, 1, 0])
    due, held = schedule.part(held, 3)
    assert (numbers(due), numbers(held)) == ([0, 2], [1])
    assert numbers(schedule.part(held, 5)[0]) == [1]


def test_turns_that_a_log_does_not_place_come_back_at_once():
    assert numbers(Schedule(events(None)).part(answered(0, 7), 0)[0]) == [0, 7]


def test_when_nothing_else_goes_on_those_that_come_first_are_let_go():
    schedule = Schedule(events(9, 4, 4))
    schedule.release(key for key, _ in answered(0, 1, 2))
    due, held = schedule.part(answered(0, 1, 2), 0)
    assert (numbers(due), numbers(held)) == ([1, 2], [0])


class Roll:
    """Rollouts of the embedded model whose tools take unequal times."""

    def __init__(self, folder):
        self.folder, self.model = folder, load_tiny("solved")
        tasks = make_tasks(6, seed=3)
        self.prompts = [fnroll.RolloutRecord(messages=task.messages) for task in tasks]

    def __call__(self, name, tools=TINY_TOOLS, **config):
        options = {"max_length": 224, "rows": 3, "progress": False, "log": str(self.folder / name), **config}
        with fnroll.Rollout(*self.model, fnroll.RolloutConfig(**options), tools) as rollout:
            return rollout.generate(fnroll.RolloutRequest(self.prompts, n=2), seed=1)

    def boundaries(self, name):
        """Return turns with the steps before which they came back, in order."""
        return [(key, calls[0].boundary) for key, calls in read_log(self.folder / name).items()]


def slow(tool):
    import time

    from fnroll.dialogue.tool import Tool

    made = Tool.from_function(tool)

    def run(**arguments):
        time.sleep(0.01 * (1 + sum(map(ord, json.dumps(arguments))) % 5))
        return tool(**arguments)

    return Tool.from_schema(made.schema, run)


@pytest.fixture
def roll(tmp_path):
    return Roll(tmp_path)


def test_a_replay_without_waiting_gives_the_same_bits_and_the_same_schedule(roll):
    """In float32, where what shares a forward rounds its log-probs."""
    live = roll("live", [slow(tool) for tool in TINY_TOOLS])
    assert len({boundary for _, boundary in roll.boundaries("live")}) > 2
    assert roll("again", replay=str(roll.folder / "live")) == live
    assert roll.boundaries("again") == roll.boundaries("live")


def test_a_replay_that_forgets_the_schedule_is_another_one(roll, monkeypatch):
    """The planted mistake: all answers come at once."""
    roll("live", [slow(tool) for tool in TINY_TOOLS])
    monkeypatch.setattr(Schedule, "_boundary", lambda self, key: 0)
    roll("again", replay=str(roll.folder / "live"))
    assert roll.boundaries("again") != roll.boundaries("live")


def test_a_replay_in_other_rows_gives_the_same_tokens_and_never_hangs(roll):
    live = roll("live", [slow(tool) for tool in TINY_TOOLS])
    for rows in (1, 12):
        again = roll(f"again{rows}", rows=rows, replay=str(roll.folder / "live"))
        assert [record.tokens for record in again] == [record.tokens for record in live]
