"""Calls of one turn to a tool that asks for it run one after another; all others overlap."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fnroll.dialogue.tool import Tool, ToolSet
from fnroll.tools.runner import ToolRunner
from tests.tools.runs import LONG_S, answer, call, finish


class Diary:
    """Notes which calls are running, and makes tools that write into it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.events: list[tuple[str, str, int]] = []

    def write(self, event: str, tool: str, number: int) -> None:
        with self.lock:
            self.events.append((event, tool, number))

    def tool(
        self, name: str, kind: str, *, is_serial: bool, work: Callable[[int], float] = lambda _: 0.0
    ) -> Tool:
        """A tool that takes `work(number)` seconds."""

        def plain(number: int) -> int:
            self.write("begin", name, number)
            time.sleep(work(number))
            self.write("end", name, number)
            return number

        async def coro(number: int) -> int:
            self.write("begin", name, number)
            try:
                await asyncio.sleep(work(number))
            finally:
                self.write("end", name, number)
            return number

        def hidden(number: int) -> Any:
            return coro(number)

        parameters = {"properties": {"number": {"type": "integer"}}, "required": ["number"]}
        function = {"plain": plain, "coro": coro, "hidden": hidden}[kind]
        return Tool.from_schema({"name": name, "parameters": parameters}, function, is_serial=is_serial)

    def is_serial(self, name: str) -> bool:
        """Whether the calls of this tool began in order, each after the end of the one before."""
        events = [(event, number) for event, tool, number in self.events if tool == name]
        numbers = sorted({number for _, number in events})
        return events == [(event, number) for number in numbers for event in ("begin", "end")]


@pytest.mark.parametrize("kind", ["plain", "coro", "hidden"])
def test_calls_of_a_serial_tool_run_in_order_and_do_not_overlap(kind: str) -> None:
    diary = Diary()
    tools = ToolSet([diary.tool("t", kind, is_serial=True, work=lambda number: 0.03 - number / 100)])
    results = answer(tools, *(call("t", number=number) for number in range(4)), timeout=LONG_S)
    assert [result.text for result in results] == ["0", "1", "2", "3"]
    assert len(diary.events) == 8 and diary.is_serial("t")


@settings(max_examples=15)
@given(
    st.lists(st.sampled_from(["plain", "coro", "hidden", "free"]), max_size=8),
    st.integers(1, 4),
    st.lists(st.floats(0, 0.01), min_size=8, max_size=8),
)
def test_any_turn_runs_its_serial_tools_in_order(names: list[str], slots: int, seconds: list[float]) -> None:
    diary = Diary()

    def work(number: int) -> float:
        return seconds[number]

    serial = [diary.tool(kind, kind, is_serial=True, work=work) for kind in ("plain", "coro", "hidden")]
    tools = ToolSet([*serial, diary.tool("free", "plain", is_serial=False, work=work)])
    with ToolRunner(tools, max_concurrent_tools=slots, tool_timeout_s=LONG_S) as runner:
        runner.submit(0, [call(name, number=number) for number, name in enumerate(names)])
        results = finish(runner, 0)[0]
    assert [result.text for result in results] == [str(number) for number in range(len(names))]
    assert all(diary.is_serial(kind) for kind in ("plain", "coro", "hidden"))


def test_other_tools_and_other_turns_overlap_with_a_serial_one() -> None:
    two, all_made = threading.Barrier(2, timeout=LONG_S), threading.Event()
    made: list[int] = []

    def serial(number: int) -> int:
        if number == 0:
            two.wait()  # for the same call of the other turn
        made.append(number)
        if len(made) == 4:
            all_made.set()
        return number

    def free() -> bool:
        return all_made.wait(LONG_S)  # for all the serial ones

    parameters = {"properties": {"number": {}}, "required": ["number"]}
    schema = {"name": "serial", "parameters": parameters}
    tools = ToolSet(
        [Tool.from_schema(schema, serial, is_serial=True), Tool.from_schema({"name": "free"}, free)]
    )
    with ToolRunner(tools, tool_timeout_s=LONG_S) as runner:
        for key in range(2):
            runner.submit(key, [call("serial", number=0), call("free"), call("serial", number=1)])
        found = finish(runner, 0, 1)
    assert [[result.text for result in found[key]] for key in range(2)] == [["0", "true", "1"]] * 2


def test_the_time_limit_counts_for_each_call() -> None:
    diary = Diary()
    tools = ToolSet([diary.tool("t", "plain", is_serial=True, work=lambda _: 0.4)])
    results = answer(tools, *(call("t", number=number) for number in range(4)), timeout=1.2)
    assert [result.status for result in results] == ["ok"] * 4
    assert all(0.4 <= result.seconds < 1.2 for result in results)


@pytest.mark.parametrize("limits_passed", [1, 2])
def test_a_call_begins_when_the_code_of_the_one_before_has_ended_however_late(limits_passed: int) -> None:
    release, limit = threading.Event(), 2.0
    diary = Diary()

    def hang(number: int) -> int:
        diary.write("begin", "hang", number)
        if number == 0:
            release.wait(LONG_S)
        diary.write("end", "hang", number)
        return number

    parameters = {"properties": {"number": {}}, "required": ["number"]}
    tool = Tool.from_schema({"name": "hang", "parameters": parameters}, hang, is_serial=True)
    with ToolRunner(ToolSet([tool]), tool_timeout_s=limit) as runner:
        runner.submit(0, [call("hang", number=number) for number in range(3)])
        assert not runner.wait((limits_passed + 0.2) * limit)
        assert diary.events == [("begin", "hang", 0)]
        release.set()
        results = finish(runner, 0)[0]
    expected = ["timeout"] * limits_passed + ["ok"] * (3 - limits_passed)
    assert [result.status for result in results] == expected
    assert diary.is_serial("hang")


def test_calls_behind_one_that_never_ends_are_answered_and_never_made() -> None:
    release = threading.Event()
    diary = Diary()

    def hang(number: int) -> int:
        diary.write("begin", "hang", number)
        release.wait(LONG_S)
        diary.write("end", "hang", number)
        return number

    parameters = {"properties": {"number": {}}, "required": ["number"]}
    tool = Tool.from_schema({"name": "hang", "parameters": parameters}, hang, is_serial=True)
    with ToolRunner(ToolSet([tool]), tool_timeout_s=0.2) as runner:
        runner.submit(0, [call("hang", number=number) for number in range(4)])
        results = finish(runner, 0)[0]
        runner.submit(1, [call("hang", number=9)])
        assert finish(runner, 1)[1][0].status == "timeout"
        release.set()
    assert [result.status for result in results] == ["timeout"] * 4
    assert [number for event, _, number in diary.events if event == "begin"] == [0, 9]


def test_an_async_call_that_cleans_up_is_waited_for() -> None:
    release, is_cleaning = threading.Event(), threading.Event()
    diary = Diary()

    async def slow(number: int) -> int:
        diary.write("begin", "slow", number)
        try:
            await asyncio.sleep(LONG_S if number == 0 else 0)
        except asyncio.CancelledError:
            is_cleaning.set()
            await asyncio.to_thread(release.wait, LONG_S)
        diary.write("end", "slow", number)
        return number

    parameters = {"properties": {"number": {}}, "required": ["number"]}
    tool = Tool.from_schema({"name": "slow", "parameters": parameters}, slow, is_serial=True)
    with ToolRunner(ToolSet([tool]), tool_timeout_s=2.0) as runner:
        runner.submit(0, [call("slow", number=number) for number in range(2)])
        while not is_cleaning.is_set():
            assert not runner.wait(0.05)
        assert diary.events == [("begin", "slow", 0)]
        release.set()
        results = finish(runner, 0)[0]
    assert [result.status for result in results] == ["timeout", "ok"]
    assert diary.is_serial("slow")


@pytest.mark.parametrize("kind", ["plain", "coro"])
def test_a_cancelled_turn_makes_no_more_of_its_calls(kind: str) -> None:
    diary = Diary()
    tools = ToolSet([diary.tool("t", kind, is_serial=True, work=lambda number: 0.2)])
    with ToolRunner(tools, max_concurrent_tools=1, tool_timeout_s=LONG_S) as runner:
        runner.submit(0, [call("t", number=number) for number in range(3)])
        while not diary.events:
            time.sleep(0.005)
        runner.cancel(0)
        runner.submit(1, [call("t", number=7)])
        assert finish(runner, 1)[1][0].text == "7"
    assert {number for _, _, number in diary.events} == {0, 7}


def test_bad_calls_take_no_place_in_the_line() -> None:
    diary = Diary()
    tools = ToolSet([diary.tool("t", "plain", is_serial=True)])
    results = answer(tools, call("t", number=0), call("t", number="x"), call("t", number=2), timeout=LONG_S)
    assert [result.status for result in results] == ["ok", "bad_arguments", "ok"]
    assert diary.is_serial("t")


def test_every_way_to_make_a_tool_takes_the_flag() -> None:
    def f() -> None:
        """Does."""

    class F:
        """Does."""

        def __call__(self) -> None: ...

    made = [Tool.from_function(f, is_serial=True), Tool.from_object(F(), is_serial=True)]
    made.append(Tool.from_schema({"name": "f"}, f, is_serial=True))
    assert all(tool.is_serial for tool in made) and not Tool.from_function(f).is_serial
    with pytest.raises(ValueError, match=r"^Tool 'f'.is_serial is 1; it must be True or False$"):
        Tool.from_function(f, is_serial=1)  # type: ignore[arg-type]
