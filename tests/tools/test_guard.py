"""A tool that turns one of torch's switches changes nothing for others, and is named."""

import asyncio
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import fnroll
from fnroll.dialogue.tool import Tool, ToolSet
from fnroll.models import load_model
from fnroll.models.tiny import TINY_TOOLS, make_tasks
from fnroll.tools import runner as runner_module
from fnroll.tools.guard import TorchGuard
from fnroll.tools.runner import ToolRunner
from tests.tools.runs import LONG_S, call, finish, tool


def state() -> tuple[Any, ...]:
    """What the thread of a rollout sees."""
    return (
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        torch.get_float32_matmul_precision(),
        torch.get_num_threads(),
        torch.get_default_device(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
    )


def other_thread() -> tuple[Any, ...]:
    """What a new thread sees."""
    found: list[tuple[Any, ...]] = []
    thread = threading.Thread(target=lambda: found.append(state()))
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture(autouse=True)
def nothing_is_turned() -> Iterator[None]:
    before, elsewhere = state(), other_thread()
    yield
    assert (state(), other_thread()) == (before, elsewhere)


def turn_dtype() -> None:
    torch.set_default_dtype(torch.float64)


SHARED: dict[str, tuple[Callable[[], object], str]] = {
    "dtype": (turn_dtype, "default dtype from torch.float32 to torch.float64"),
    "determinism": (
        lambda: torch.use_deterministic_algorithms(False),
        "deterministic algorithms (on, only warn) from (True, False) to (False, False)",
    ),
    "warn_only": (
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
        "deterministic algorithms (on, only warn) from (True, False) to (True, True)",
    ),
    "benchmark": (
        lambda: setattr(torch.backends.cudnn, "benchmark", True),
        "cuDNN (deterministic, benchmark) from (False, False) to (False, True)",
    ),
    "precision": (
        lambda: torch.set_float32_matmul_precision("medium"),
        "float32 precision of matrix products from highest to medium",
    ),
    "threads": (lambda: torch.set_num_threads(3), "number of threads from 1 to 3"),
}


@pytest.mark.parametrize("kind", ["plain", "coro", "hidden"])
@pytest.mark.parametrize("name", SHARED)
def test_a_shared_switch_is_put_back_and_its_tool_named(name: str, kind: str) -> None:
    turn, what = SHARED[name]

    def plain() -> str:
        turn()
        return "x"

    async def coro() -> str:
        return plain()

    tools = ToolSet([tool("bad", {"plain": plain, "coro": coro, "hidden": lambda: coro()}[kind])])
    expected = f"tool 'bad' turned torch's {what} for all threads; it was put back."
    with ToolRunner(tools, tool_timeout_s=LONG_S) as runner:
        for key in range(2):  # said once
            runner.submit(key, [call("bad")])
            assert runner.wait(LONG_S)
            before = state()
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                [(_, results)] = runner.ready()
            assert [result.text for result in results] == ["x"]
            assert [str(warning.message) for warning in said] == ([expected] if key == 0 else [])
            assert before == state()


def test_tools_that_turn_nothing_or_turn_it_back_themselves_are_not_named() -> None:
    def good() -> str:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        text = str(torch.zeros(1).dtype)
        torch.set_default_dtype(before)
        return text

    with ToolRunner(ToolSet([tool("good", good)]), tool_timeout_s=LONG_S) as runner:
        runner.submit(0, [call("good")])
        assert finish(runner, 0)[0][0].text == "torch.float64"


def test_a_tool_that_raises_is_seen_too() -> None:
    def bad() -> None:
        turn_dtype()
        raise ValueError

    with ToolRunner(ToolSet([tool("bad", bad)]), tool_timeout_s=LONG_S) as runner:
        runner.submit(0, [call("bad")])
        with pytest.warns(RuntimeWarning, match="tool 'bad' turned torch's default dtype"):
            assert finish(runner, 0)[0][0].status == "error"


def test_a_tool_that_has_not_ended_is_put_right_at_the_next_poll() -> None:
    is_turned, release = threading.Event(), threading.Event()

    def hang() -> None:
        turn_dtype()
        is_turned.set()
        release.wait(LONG_S)

    with ToolRunner(ToolSet([tool("hang", hang)]), tool_timeout_s=LONG_S) as runner:
        runner.submit(0, [call("hang")])
        assert is_turned.wait(LONG_S)
        with pytest.warns(RuntimeWarning, match="tool 'hang' turned torch's default dtype"):
            assert runner.ready() == []
        assert torch.get_default_dtype() == torch.float32
        release.set()
        finish(runner, 0)


def test_a_tool_that_never_ends_is_put_right_at_the_end_and_then_left_alone() -> None:
    is_turned, release, has_ended = threading.Event(), threading.Event(), threading.Event()

    def hang() -> None:
        turn_dtype()
        is_turned.set()
        release.wait(LONG_S)
        has_ended.set()

    runner = ToolRunner(ToolSet([tool("hang", hang)]), tool_timeout_s=LONG_S)
    runner.submit(0, [call("hang")])
    assert is_turned.wait(LONG_S)
    with pytest.warns(RuntimeWarning, match="tool 'hang' turned torch's default dtype"):
        runner.close()
    assert torch.get_default_dtype() == torch.float32
    torch.set_default_dtype(torch.bfloat16)  # what the program does now is its own affair
    release.set()
    assert has_ended.wait(LONG_S)
    time.sleep(0.05)
    assert torch.get_default_dtype() == torch.bfloat16
    torch.set_default_dtype(torch.float32)


def test_tools_that_run_at_once_are_named_together() -> None:
    both, is_turned = threading.Barrier(2, timeout=LONG_S), threading.Event()

    def bad() -> None:
        both.wait()
        turn_dtype()
        is_turned.set()

    def good() -> str:
        both.wait()
        assert is_turned.wait(LONG_S)
        return "x"

    with ToolRunner(ToolSet([tool("bad", bad), tool("good", good)]), tool_timeout_s=LONG_S) as runner:
        runner.submit(0, [call("good"), call("bad")])
        with pytest.warns(
            RuntimeWarning, match="one of the tools 'bad', 'good' turned torch's default dtype"
        ):
            assert [result.status for result in finish(runner, 0)[0]] == ["ok", "ok"]


kept: list[object] = []


def enter_inference_mode() -> None:
    kept.append(torch.inference_mode())  # it lasts as long as it is held
    kept[-1].__enter__()  # type: ignore[attr-defined]


THREAD: dict[str, Callable[[], object]] = {
    "grad mode": lambda: torch.set_grad_enabled(not torch.is_grad_enabled()),
    "inference mode": lambda: enter_inference_mode(),
    "default device": lambda: torch.set_default_device("meta"),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
}


@pytest.mark.parametrize("name", THREAD)
def test_what_an_async_tool_leaves_turned_in_its_thread_others_do_not_see(name: str) -> None:
    seen: list[tuple[Any, ...]] = []

    async def bad() -> None:
        await asyncio.sleep(0)
        THREAD[name]()

    async def look() -> None:
        seen.append(state())

    with ToolRunner(ToolSet([tool("bad", bad), tool("look", look)]), tool_timeout_s=LONG_S) as runner:
        runner.submit(0, [call("look")])
        finish(runner, 0)
        runner.submit(1, [call("bad")])
        with pytest.warns(
            RuntimeWarning, match=r"^tool 'bad' left torch's grad mode, autocast or default device"
        ):
            finish(runner, 1)
        runner.submit(2, [call("look")])
        finish(runner, 2)
        assert len(runner._loops) == 1
    assert seen[0] == seen[1]


def test_a_block_with_a_switch_turned_is_no_mistake_of_its_own_or_of_its_neighbours() -> None:
    first, second = asyncio.Event(), asyncio.Event()

    async def inside() -> bool:
        with torch.no_grad():
            first.set()
            await second.wait()
        return torch.is_grad_enabled()

    async def beside() -> str:
        await first.wait()
        return "x"

    tools = ToolSet([tool(f.__name__, f) for f in (inside, beside)])
    with ToolRunner(tools, tool_timeout_s=LONG_S) as runner:
        runner.submit(0, [call("inside")])
        runner.submit(1, [call("beside")])
        assert finish(runner, 1)[1][0].text == "x"
        old = runner._loops[0]
        old.call(second.set)
        assert finish(runner, 0)[0][0].text == "true"
        runner.submit(2, [call("beside")])
        finish(runner, 2)
        assert old not in runner._loops and len(runner._loops) == 1


def test_threads_that_are_given_up_lose_no_call_and_do_not_add_up() -> None:
    async def bad(number: int) -> int:
        await asyncio.sleep(number % 3 / 1000)
        torch.set_grad_enabled(False)
        return number

    async def good(number: int) -> int:
        await asyncio.sleep(number % 4 / 1000)
        return number

    before = threading.active_count()
    tools = ToolSet([tool("bad", bad, "number"), tool("good", good, "number")])
    with ToolRunner(tools, max_concurrent_tools=5, tool_timeout_s=LONG_S) as runner:
        for key in range(40):
            runner.submit(key, [call("bad" if number % 3 else "good", number=number) for number in range(5)])
        with pytest.warns(RuntimeWarning, match="left torch's grad mode"):
            found = finish(runner, *range(40))
        assert len(runner._loops) <= 2
    assert all([result.text for result in results] == list("01234") for results in found.values())
    end = time.monotonic() + LONG_S
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= before


@pytest.mark.parametrize("kind", ["plain", "coro"])
def test_a_rollout_is_the_same_whatever_its_tools_turn_seed_or_draw(kind: str) -> None:
    def turn_all() -> None:
        for turn, _ in SHARED.values():
            turn()
        for turn in THREAD.values():
            turn()
        torch.manual_seed(0)
        torch.rand(3, device="cpu")

    def roll(tools: list[Any]) -> list[Any]:
        model, tokenizer = load_model("tiny-solved")
        config = fnroll.RolloutConfig(max_length=256, rows=4, max_turns=4, wait_for_tools=True)
        prompts = [fnroll.RolloutRecord(messages=task.messages) for task in make_tasks(4)]
        with fnroll.Rollout(model, tokenizer, config, tools=tools) as rollout:
            return list(rollout.generate(fnroll.RolloutRequest(prompts, n=2), seed=3))

    def spoiled(function: Callable[..., Any]) -> Tool:
        async def coro(**arguments: Any) -> Any:
            turn_all()
            return function(**arguments)

        def plain(**arguments: Any) -> Any:
            turn_all()
            return function(**arguments)

        return Tool.from_schema(Tool.from_function(function).schema, plain if kind == "plain" else coro)

    good = roll(list(TINY_TOOLS))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = roll(list(map(spoiled, TINY_TOOLS)))
    assert any("turned torch's default dtype" in str(warning.message) for warning in said)
    assert any(record.tool_calls for record in good)
    for one, other in zip(good, found, strict=True):
        assert (one.tokens, one.log_probs) == (other.tokens, other.log_probs)


def test_a_runner_in_a_program_without_torch_watches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fnroll.tools.guard._find_torch", lambda: None)
    guard = TorchGuard()
    guard.enter("a")
    guard.look()
    guard.leave("a")
    assert guard.take_notes() == []
    with ToolRunner(ToolSet([tool("a", lambda: 1)])) as runner:
        runner.submit(0, [call("a")])
        assert finish(runner, 0)[0][0].text == "1"
    assert runner_module.LEFT_TURNED
