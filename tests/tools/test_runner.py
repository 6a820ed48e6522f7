import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fnroll.dialogue.message import ToolCall
from fnroll.dialogue.tool import Tool, ToolSet
from fnroll.tools import runner as runner_module
from fnroll.tools.runner import ToolRunner
from tests.tools.runs import LONG_S, SLEEPERS, answer, call, finish, tool


# Case C9.
@pytest.mark.parametrize(
    "kinds", [("plain",) * 3, ("coro",) * 3, ("plain", "coro", "plain"), ("coro", "plain", "coro")]
)
def test_results_come_in_call_order(kinds: tuple[str, ...]) -> None:
    latencies = (0.09, 0.01, 0.05)
    calls = [call(k, seconds=s, tag=t) for k, s, t in zip(kinds, latencies, "ABC", strict=True)]
    results = answer(SLEEPERS, *calls)
    assert [result.text for result in results] == ["A", "B", "C"]
    assert all(result.status == "ok" for result in results)
    assert all(s <= r.seconds < s + 1 for r, s in zip(results, latencies, strict=True))


def test_turns_are_independent_and_calls_overlap() -> None:
    with ToolRunner(SLEEPERS) as runner:
        start = time.monotonic()
        for key in range(10):
            runner.submit(
                key, [call("plain", seconds=0.1, tag=f"{key}p"), call("coro", seconds=0.1, tag=f"{key}c")]
            )
        assert time.monotonic() - start < 0.9
        found = finish(runner, *range(10))
        assert time.monotonic() - start < 1.5
        assert runner.ready() == []
    assert {key: [r.text for r in results] for key, results in found.items()} == {
        key: [f"{key}p", f"{key}c"] for key in range(10)
    }


def test_turn_without_calls_is_ready_at_once() -> None:
    with ToolRunner(ToolSet()) as runner:
        assert not runner.wait(1.0)
        runner.submit(0, [])
        assert runner.wait(0) and runner.ready() == [(0, ())]


def test_timeout_frees_the_slot_and_discards_the_late_result() -> None:
    release = threading.Event()

    def hang() -> str:
        release.wait()
        return "late"

    tools = ToolSet([tool("hang", hang), *SLEEPERS])
    with ToolRunner(tools, max_concurrent_tools=1, tool_timeout_s=0.3) as runner:
        runner.submit(
            0,
            [call("hang"), call("hang"), call("coro", seconds=9, tag=""), call("plain", seconds=0, tag="x")],
        )
        (results,) = finish(runner, 0).values()
        assert [result.status for result in results] == ["timeout", "timeout", "timeout", "ok"]
        assert results[0].text == "Error: tool 'hang' did not finish within 0.3 seconds."
        assert all(0.3 <= result.seconds < 2 for result in results[:3])
        release.set()
        time.sleep(0.05)
        assert runner.ready() == []
    assert results[0].status == "timeout"


def test_status_does_not_depend_on_when_the_driver_polls() -> None:
    with ToolRunner(SLEEPERS, tool_timeout_s=0.3) as runner:
        runner.submit(0, [call("plain", seconds=0.5, tag="late"), call("coro", seconds=0, tag="")])
        time.sleep(0.9)
        ((_, results),) = runner.ready()
    assert [result.status for result in results] == ["timeout", "ok"]


def test_async_tool_that_blocks_the_loop_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "STUCK_AFTER_S", 0.2)
    monkeypatch.setattr(runner_module, "CLOSE_TIMEOUT_S", 0.2)
    release = threading.Event()
    ran: list[int] = []

    async def block() -> None:
        release.wait()

    async def count() -> str:
        ran.append(1)
        return "x"

    tools = ToolSet([tool("block", block), tool("count", count), *SLEEPERS])
    with ToolRunner(tools, tool_timeout_s=0.5) as runner:
        runner.submit(0, [call("block"), call("count"), call("plain", seconds=0, tag="p")])
        (results,) = finish(runner, 0).values()
        assert [result.status for result in results] == ["timeout", "ok", "ok"]
        runner.submit(1, [call("count")])
        assert finish(runner, 1)[1][0].text == "x"
        release.set()
        time.sleep(0.1)
    assert len(ran) == 2


@pytest.mark.parametrize("kind", ["plain", "coro"])
def test_no_more_than_the_allowed_number_run_at_once(kind: str) -> None:
    running, most = 0, 0
    lock = threading.Lock()

    def enter(step: int) -> None:
        nonlocal running, most
        with lock:
            running += step
            most = max(most, running)

    def plain() -> None:
        enter(1)
        time.sleep(0.02)
        enter(-1)

    async def coro() -> None:
        enter(1)
        await asyncio.sleep(0.02)
        enter(-1)

    tools = ToolSet([tool("t", {"plain": plain, "coro": coro}[kind])])
    with ToolRunner(tools, max_concurrent_tools=3) as runner:
        for key in range(4):
            runner.submit(key, [call("t")] * 3)
        finish(runner, *range(4))
    assert most == 3


def test_cancel_forgets_a_turn_and_ends_its_tasks() -> None:
    cleaned = threading.Event()

    async def hang() -> None:
        try:
            await asyncio.sleep(99)
        finally:
            cleaned.set()

    with ToolRunner(ToolSet([tool("hang", hang), *SLEEPERS]), max_concurrent_tools=1) as runner:
        runner.submit(0, [call("hang"), call("hang")])
        runner.submit(1, [call("plain", seconds=0, tag="x")])
        assert not runner.wait(0.1)
        runner.cancel(0)
        runner.cancel("unknown")
        assert list(finish(runner, 1)) == [1]
        assert cleaned.wait(1.0)
        runner.submit(0, [call("plain", seconds=0, tag="again")])
        assert finish(runner, 0)[0][0].text == "again"


def test_close_ends_in_bounded_time_and_lets_tools_clean_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "CLOSE_TIMEOUT_S", 0.3)
    cleaned = threading.Event()

    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(99)
            except asyncio.CancelledError:
                cleaned.set()

    runner = ToolRunner(ToolSet([tool("stubborn", stubborn), *SLEEPERS]))
    runner.submit(0, [call("stubborn"), call("plain", seconds=99, tag="")])
    assert not runner.wait(0.1)
    start = time.monotonic()
    runner.close()
    runner.close()
    assert time.monotonic() - start < 3
    assert cleaned.is_set()
    assert runner.ready() == [] and not runner.wait(1.0)
    with pytest.raises(RuntimeError, match="submit was called after close"):
        runner.submit(1, [])


def test_key_in_use_is_refused() -> None:
    with ToolRunner(SLEEPERS) as runner:
        runner.submit(0, [])
        with pytest.raises(ValueError, match="the turn 0 was submitted before"):
            runner.submit(0, [])


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (
            {"max_concurrent_tools": 0},
            "max_concurrent_tools is 0; it must be an int of at least 1",
        ),
        (
            {"max_concurrent_tools": True},
            "max_concurrent_tools is True; it must be an int of at least 1",
        ),
        (
            {"tool_timeout_s": 0},
            "tool_timeout_s is 0; it must be a finite number above 0, or None",
        ),
        (
            {"tool_timeout_s": float("nan")},
            "tool_timeout_s is nan; it must be a finite number above 0, or None",
        ),
    ],
)
def test_limits_are_checked(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        ToolRunner(ToolSet(), **limits)
    assert str(caught.value) == f"ToolRunner.{message}"


def test_printing_tools_leave_stdout_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    def say() -> str:
        print("printed")
        return "returned"

    assert answer(ToolSet([tool("say", say)]), call("say"))[0].text == "returned"
    assert capsys.readouterr().out == "printed\n"


SCRIPT = """
import asyncio, os, signal, sys, threading, time
from fnroll.dialogue.message import ToolCall
from fnroll.dialogue.tool import Tool, ToolSet
from fnroll.tools.runner import ToolRunner

async def in_thread():
    await asyncio.to_thread(time.sleep, 99)

hang = lambda: time.sleep(99)
tools = [Tool.from_schema({"name": n}, f) for n, f in [("hang", hang), ("in_thread", in_thread)]]
runner = ToolRunner(ToolSet(tools), tool_timeout_s=None)
runner.submit(0, [ToolCall("hang", {}, (0, 0)), ToolCall("in_thread", {}, (0, 0))])
print(runner.wait(0.2), flush=True)
if sys.argv[1] == "interrupt":
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        runner.wait()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        runner.close()
"""


@pytest.mark.parametrize(("mode", "output"), [("leave", "False\n"), ("interrupt", "False\ninterrupted\n")])
def test_hung_tools_block_neither_exit_nor_ctrl_c(mode: str, output: str) -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, mode],
        capture_output=True,
        text=True,
        timeout=LONG_S,
        cwd=root,
        check=False,
    )
    assert (done.stdout, done.returncode) == (output, 0), done.stderr


def test_a_machine_without_threads_gives_every_call_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("fnroll.tools.runner.start_daemon", refuse)
    tool = Tool.from_schema({"name": "t"}, lambda: "x")
    with ToolRunner(ToolSet([tool]), max_concurrent_tools=2) as runner:
        runner.submit(0, [ToolCall("t", {}, (0, 0))] * 3000)
        [(_, results)] = runner.ready()
    assert {result.status for result in results} == {"error"}
    assert "can't start new thread" in results[-1].text
