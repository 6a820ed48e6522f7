import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fnroll.dialogue.message import ParseError, ToolCall
from fnroll.dialogue.tool import ToolSet
from fnroll.tools.log import EffectLog, LogError, ToolEvent, read_log, turn_events
from fnroll.tools.replay import ReplayError, ReplayRunner
from fnroll.tools.result import Runner, ToolResult, TurnKey
from fnroll.tools.runner import ToolRunner

KEY = TurnKey("p-7", 1, 2)


def add(a: int, b: int) -> int:
    """Adds.

    Args:
        a: first
        b: second
    """
    return a + b


def call(name: str = "add", **arguments: Any) -> ToolCall:
    return ToolCall(name, arguments, (0, 0))


def event(index: int = 0, key: TurnKey = KEY, text: str = "3", **arguments: Any) -> ToolEvent:
    return ToolEvent(key, index, "add", arguments, ToolResult(text, "ok", 0.5))


CALLS = (
    call(a=1, b=2),
    call(a="\ud800", b=float("nan")),
    call("nope", x={"b": [1, None], "a": 1.0}),
    ParseError("no JSON: \udfff", (3, 9)),
)


def run(runner: Runner, key: TurnKey = KEY, calls: Any = CALLS) -> tuple[ToolResult, ...]:
    runner.submit(key, calls)
    assert runner.wait(5.0)
    ((found, results),) = runner.ready()
    assert found == key
    return results


@pytest.fixture
def logged(tmp_path: Path) -> tuple[Path, tuple[ToolResult, ...]]:
    path = tmp_path / "effects.jsonl"
    with ToolRunner(ToolSet([add])) as runner, EffectLog.open(path) as log:
        results = run(runner)
        log.write(*turn_events(KEY, CALLS, results))
    return path, results


def test_replay_gives_the_same_results_without_any_tool(logged: tuple[Path, tuple[ToolResult, ...]]) -> None:
    path, results = logged
    assert [result.status for result in results] == ["ok", "bad_arguments", "unknown_tool", "parse_error"]
    for log in (path, str(path), read_log(path)):
        with ReplayRunner(log) as runner:
            assert run(runner) == results
            assert runner.ready() == [] and not runner.wait()


def test_file_has_a_header_and_one_line_per_call(logged: tuple[Path, tuple[ToolResult, ...]]) -> None:
    path, results = logged
    lines = path.read_bytes().decode("ascii").splitlines()
    assert json.loads(lines[0]) == {"format": "fnroll-effects", "version": 1}
    assert json.loads(lines[1]) == {
        "prompt_id": "p-7",
        "sample": 1,
        "turn": 2,
        "seed": 0,
        "step": 0,
        "call": 0,
        "name": "add",
        "arguments": {"a": 1, "b": 2},
        "text": "3",
        "status": "ok",
        "seconds": results[0].seconds,
    }
    assert len(lines) == 5
    assert read_log(path)[KEY][1].arguments["a"] == "\ud800"
    assert tuple(found.result for found in read_log(path)[KEY]) == results


def test_every_event_is_on_disk_when_write_returns(tmp_path: Path) -> None:
    with EffectLog.open(tmp_path / "log") as log:
        log.write(event(0))
        assert read_log(tmp_path / "log") == {KEY: (event(0),)}


def test_killed_writer_leaves_a_readable_log(tmp_path: Path) -> None:
    script = """
import sys
from fnroll.tools.log import EffectLog, ToolEvent
from fnroll.tools.result import ToolResult, TurnKey
log = EffectLog.open(sys.argv[1])
for turn in range(10**9):
    log.write(ToolEvent(TurnKey(0, 0, turn), 0, "t", {"x": "y" * 5000}, ToolResult("z", "ok", 0.0)))
"""
    path, root = tmp_path / "log", Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", script, str(path)], cwd=root)
    try:
        end = time.monotonic() + 20
        while not path.exists() or path.stat().st_size < 100_000:
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    turns = read_log(path)
    assert len(turns) >= 15 and [key.turn for key in turns] == list(range(len(turns)))


@pytest.mark.parametrize("cut", [1, 30, 60])
def test_torn_last_line_is_ignored_and_cut_off_by_the_next_writer(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "log"
    with EffectLog.open(path) as log:
        log.write(event(0), event(1))
    os.truncate(path, path.stat().st_size - cut)
    assert read_log(path) == {KEY: (event(0),)}
    with EffectLog.open(path) as log:
        log.write(event(1, text="again"))
    assert read_log(path) == {KEY: (event(0), event(1, text="again"))}


@pytest.mark.parametrize("size", [0, 10])
def test_torn_header_is_written_again(tmp_path: Path, size: int) -> None:
    path = tmp_path / "log"
    EffectLog.open(path).close()
    os.truncate(path, size)
    assert read_log(path) == {}
    with EffectLog.open(path) as log:
        log.write(event(0))
    assert read_log(path) == {KEY: (event(0),)}


def test_turn_that_was_run_again_counts_as_logged_last(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for text, count in (("first", 2), ("second", 1)):
        with EffectLog.open(path) as log:
            log.write(*(event(index, text=text) for index in range(count)))
    assert read_log(path) == {KEY: (event(0, text="second"),)}
    assert len(path.read_text().splitlines()) == 4


def test_short_foreign_file_is_no_torn_header(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("my notes")
    with pytest.raises(LogError, match="line 1: this is not an effect log"):
        EffectLog.open(path)
    assert path.read_text() == "my notes"


GOOD = (
    '{"prompt_id":0,"sample":0,"turn":0,"call":0,'
    '"name":"t","arguments":{},"text":"","status":"ok","seconds":0}'
)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt_id": 0', "line 3: damaged, this is not JSON"),
        ("\x00\x00", "line 3: damaged, this is not JSON"),
        ("", "line 3: damaged, this is not JSON"),
        ("[]", "line 3: the line is a JSON list; it must be an object"),
        ("{}", "line 3: 'prompt_id' is missing; it must be int or str"),
        (GOOD.replace('"sample":0', '"sample":true'), "line 3: 'sample' is True; it must be int"),
        (
            GOOD.replace('"turn":0', '"turn":-1'),
            "line 3: 'sample', 'turn', 'seed', 'step', 'call' and 'seconds' must not",
        ),
        (
            GOOD.replace('"ok"', '"fine"'),
            "line 3: 'status' is 'fine'; it must be one of ok, error, timeout, unknown_tool",
        ),
        (GOOD.replace('"name":"t"', '"name":3'), "line 3: 'name' is 3; it must be str or null"),
        (
            GOOD.replace('"call":0', '"call":2'),
            "line 3: prompt 0, sample 0, turn 0, call 2 comes before call 1.",
        ),
    ],
)
def test_other_damage_is_named_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "log"
    header = '{"format": "fnroll-effects", "version": 1}'
    path.write_text("\n".join([header, GOOD, line, GOOD]) + "\n")
    for read in (read_log, EffectLog.open, ReplayRunner):
        with pytest.raises(LogError) as caught:
            read(path)
        assert f"{path}, {message}" in str(caught.value)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ('{"format": "fnroll-effects", "version": 2}', "line 1: version is 2; it must be 1"),
        ('{"a": 1}', "line 1: this is not an effect log"),
        ("# notes", "line 1: damaged, this is not JSON"),
    ],
)
def test_foreign_files_are_refused_and_left_as_they_are(tmp_path: Path, header: str, message: str) -> None:
    path = tmp_path / "log"
    path.write_text(header + "\nrest")
    with pytest.raises(LogError, match=message.replace(".", r"\.")):
        EffectLog.open(path)
    assert path.read_text() == header + "\nrest"


@pytest.mark.parametrize(
    ("key", "calls", "message"),
    [
        (
            TurnKey("p-7", 1, 3),
            CALLS,
            "prompt 'p-7', sample 1, turn 3, call 0: the log does not hold this call.",
        ),
        (KEY, (*CALLS, call()), "prompt 'p-7', sample 1, turn 2, call 4: the log does not hold this call."),
        (KEY, CALLS[:3], "turn 2, call 3: the log holds this call, but the turn does not."),
        (KEY, (), "turn 2, call 0: the log holds this call, but the turn does not."),
        (
            KEY,
            (call("sub", a=1, b=2), *CALLS[1:]),
            "call 0: the rollout calls 'sub', but the log holds 'add'.",
        ),
        (
            KEY,
            (call(a=1, b=2.0), *CALLS[1:]),
            'call 0: the rollout calls \'add\' with {"a": 1, "b": 2.0}, but the log holds {"a": 1, "b": 2}.',
        ),
        (KEY, (*CALLS[:3], call()), "call 3: the rollout calls 'add', but the log holds None."),
        (
            KEY,
            (*CALLS[:3], ParseError("other", (0, 0))),
            "call 3: the parse error is 'other', but the log holds",
        ),
        (0, CALLS, "key is 0; it must be a TurnKey or as long"),
    ],
)
def test_replay_of_something_else_is_refused(
    logged: tuple[Path, tuple[ToolResult, ...]], key: Any, calls: Any, message: str
) -> None:
    with pytest.raises(ReplayError) as caught:
        ReplayRunner(logged[0]).submit(key, calls)
    assert message in str(caught.value)


def test_order_of_arguments_does_not_matter(logged: tuple[Path, tuple[ToolResult, ...]]) -> None:
    path, results = logged
    assert run(ReplayRunner(path), calls=(call(b=2, a=1), *CALLS[1:])) == results


def test_replay_can_be_cancelled(logged: tuple[Path, tuple[ToolResult, ...]]) -> None:
    runner = ReplayRunner(logged[0])
    runner.submit(KEY, CALLS)
    runner.cancel(KEY)
    runner.cancel("unknown")
    assert runner.ready() == []


def test_writing_checks_the_event(tmp_path: Path) -> None:
    with EffectLog.open(tmp_path / "log") as log:
        with pytest.raises(LogError, match="'prompt_id' is None; it must be int or str"):
            log.write(event(key=TurnKey(None, 0, 0)))  # type: ignore[arg-type]
        with pytest.raises(ValueError):
            turn_events(KEY, CALLS, ())
    assert read_log(tmp_path / "log") == {}
