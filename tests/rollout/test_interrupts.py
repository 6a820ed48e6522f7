"""What is kept and what is left behind when a rollout with tools ends early, and what a log gives back."""

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch

import fnroll
from fnroll.cli import main
from fnroll.testing.scripted import scripted_model
from fnroll.tools.replay import ReplayError
from tests.rollout.flight.test_turns import DONE, echo, go_on, tool
from tests.rollout.scripts import (
    call,
    encode,
    ending,
    make,
    outputs_text,
    request,
    results,
    roll,
    set_model,
    stop_ids,
    tokenizer,
)

ROOT = Path(__file__).parents[2]

# The command, with a scripted model in place of a real one.
COMMAND = """
    import os
    import sys
    import fnroll.cli
    from fnroll.testing.scripted import scripted_model
    from tests.rollout.scripts import call, stop_ids, tokenizer

    code = f"import os, time; open({os.path.abspath('pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    used = tokenizer()
    scripts = {
        "a": [call("calculator", expression="40+2"), "it is 42"],
        "b": [call("calculator", expression="1/0"), "no"],
        "c": [call("python", code=code), "never"],
    }
    fnroll.cli.load_model = lambda *_: (scripted_model(used, scripts, stop_ids=stop_ids()), used)
    sys.exit(fnroll.cli.main(sys.argv[1:]))
"""


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


def is_alive(pid):
    try:
        # Reaped by whoever inherited it, or waiting to be.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def read(path, event=None):
    """Return the header and the answers, or the events of one kind."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line.get("event") == event]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_ctrl_c_keeps_what_is_finished_and_the_log_and_leaves_no_process(tmp_path, batching):
    """A real SIGINT while a tool of one record hangs, after the others have ended."""
    (tmp_path / "prompts.txt").write_text("a\nb\nc\n")
    arguments = "rollout --prompts prompts.txt --tools calculator,python --temperature 0 --out out.jsonl"
    arguments += f" --log log.jsonl --batching {batching}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(COMMAND), *arguments.split()],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        out, pid = tmp_path / "out.jsonl", tmp_path / "pid"
        wait_for(lambda: child.poll() is not None or (out.exists() and out.read_text().count("\n") == 2))
        wait_for(lambda: child.poll() is not None or (pid.exists() and pid.read_text()))
        assert child.poll() is None, child.communicate()[0]
        program = int(pid.read_text())
        assert is_alive(program)
        child.send_signal(signal.SIGINT)
        shown, _ = child.communicate(timeout=30)
    finally:
        child.kill()
        child.communicate()
    assert child.returncode == 130, shown
    assert "rollout interrupted: 2 of 3 records had ended" in shown and "Traceback" not in shown
    batch = fnroll.RolloutBatch.load(out)
    assert [(record.prompt_id, *ending(record)) for record in batch] == [(0, *DONE), (1, *DONE)]
    header, *events = read(tmp_path / "log.jsonl")
    assert header["format"] == "fnroll-effects"
    assert sorted((event["prompt_id"], event["name"]) for event in events) == [
        (0, "calculator"),
        (1, "calculator"),
    ]
    # The call that hung left its trace, without an answer.
    assert (2, "python") in [
        (line["prompt_id"], line["name"]) for line in read(tmp_path / "log.jsonl", "call")
    ]
    wait_for(lambda: not is_alive(program), 10)


def replay_command(tmp_path, monkeypatch, scripts):
    model = scripted_model(tokenizer(), scripts, stop_ids=stop_ids())
    monkeypatch.setattr("fnroll.cli.load_model", lambda *_: (model, tokenizer()))
    (tmp_path / "prompts.txt").write_text("\n".join(scripts))
    options = ["--temperature", "0", "--tools", "calculator"]
    return ["rollout", "--prompts", str(tmp_path / "prompts.txt"), *options]


def test_the_command_replays_its_log_and_says_where_a_rollout_differs(tmp_path, monkeypatch, capsys):
    scripts = {"a": [call("calculator", expression="40+2"), "done"]}
    log, one, two = (str(tmp_path / name) for name in ("log.jsonl", "one.jsonl", "two.jsonl"))
    command = replay_command(tmp_path, monkeypatch, scripts)
    assert main([*command, "--log", log, "--out", one]) == 0
    monkeypatch.setattr("fnroll.rollout.turns.ToolRunner", None)  # no tool can run
    assert main([*command, "--replay", log, "--out", two]) == 0
    assert Path(one).read_text() == Path(two).read_text() and "42" in Path(one).read_text()
    other = {"a": [call("calculator", expression="40+3"), "done"]}
    capsys.readouterr()
    assert main([*replay_command(tmp_path, monkeypatch, other), "--replay", log, "--out", two]) == 2
    error = capsys.readouterr().err
    assert error.startswith("fnroll: prompt 0, sample 0, turn 0, call 0: the rollout calls 'calculator' with")
    assert "40+3" in error and "40+2" in error and "Traceback" not in error


def test_a_replay_with_other_arguments_is_a_clear_error(tmp_path):
    log = str(tmp_path / "log.jsonl")
    roll({"go": [call("echo", text="x"), "bye"]}, [echo()], log=log)
    cases = {
        "with {\"text\": \"y\"}, but the log holds {\"text\": \"x\"}": [call("echo", text="y"), "bye"],
        "calls 'other', but the log holds 'echo'": [call("other"), "bye"],
        "turn 0, call 1: the log does not hold this call": [call("echo", text="x") * 2, "bye"],
        "turn 1, call 0: the log does not hold this call": [call("echo", text="x")] * 2,
    }  # fmt: skip
    for message, turns in cases.items():
        with pytest.raises(ReplayError) as error:
            roll({"go": turns}, [echo()], replay=log)
        assert message in str(error.value)


def test_a_torn_log_replays_up_to_the_tear_and_is_continued(tmp_path):
    log = tmp_path / "log.jsonl"
    scripts = {"go": [call("echo", text="x"), call("echo", text="y"), "bye"]}
    whole = roll(scripts, [echo()], log=str(log))["go"]
    data = log.read_bytes()
    log.write_bytes(data[:-7])
    with pytest.raises(ReplayError, match="turn 1, call 0: the log does not hold this call"):
        roll(scripts, [echo()], replay=str(log))
    again = roll(scripts, [echo()], log=str(log))["go"]
    assert again == whole
    assert roll(scripts, [], multi_turn=True, replay=str(log))["go"] == whole
    lines = read(log)
    assert [line["turn"] for line in lines[1:]] == [0, 0, 1]  # the tear is cut off


@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_one_rollout_generates_twice(tmp_path, batching):
    """Tools, buffers and the log of the first call are no concern of the second."""
    scripts = {"a": [call("echo", text="x" * 40), "bye"], "b": [call("echo", text="y"), "bye"]}
    log = str(tmp_path / "log-{step}.jsonl")
    with torch.no_grad(), make(scripts, [echo()], batching=batching, rows=1, log=log) as rollout:
        first = rollout.generate(request(scripts), step=0)
        second = rollout.generate(request(scripts), step=1)
        third = rollout.generate(request(["b"]), step=2)
    assert first.records == second.records
    assert third[0].tokens == first[1].tokens
    assert [len(read(tmp_path / f"log-{step}.jsonl")) for step in range(3)] == [3, 3, 2]
    assert not loops()


def loops():
    """Threads of the tools' event loops."""
    return [thread for thread in threading.enumerate() if thread.name == "fnroll-tool-loop"]


class Broken(Exception):
    pass


def raise_in_on_record(rollout):
    def on_record(*_):
        raise Broken

    return {"on_record": on_record}


def raise_in_model(rollout):
    fn, model = rollout.model.fn, rollout.model

    said = encode("\x00")[0]

    def on_token(params, chunk, cache):
        if said in chunk.tokens:
            set_model(rollout, model)
            rollout.__dict__.pop("_steps", None)
            raise Broken
        return fn(params, chunk, cache)

    set_model(rollout, dataclasses.replace(model, fn=on_token))
    return {}


@pytest.mark.parametrize("breaking", [raise_in_on_record, raise_in_model])
def test_an_exception_leaves_the_rollout_usable_and_no_tool_running(tmp_path, breaking):
    """While an async tool of another record hangs: it is cancelled, and cleans up."""
    events, ended = [], []

    async def hang():
        events.append("start")
        try:
            await asyncio.sleep(600)
        finally:
            events.append("end")

    scripts = {"a": [call("echo", text="x"), "bye\x00"], "b": [call("hang"), "never"], "c": ["bye"]}
    log = str(tmp_path / "log.jsonl")
    with torch.no_grad(), make(scripts, [echo(), tool("hang", hang)], log=log) as rollout:
        options = breaking(rollout)
        with pytest.raises(Broken) as kept:  # as a debugger keeps it, with all frames of the rollout
            rollout.generate(request(["b", "a"]), **options)
        wait_for(lambda: events in (["start", "end"], []), 5)
        wait_for(lambda: not loops(), 5)
        assert len(rollout.finished) == (1 if options else 0)
        # The same object rolls out again; ids that were "b" and "a" are others now.
        again = rollout.generate(request(["c", "a"]), on_record=lambda index, _: ended.append(index))
    assert [ending(record)[:2] for record in again] == [("COMPLETED", "eos")] * 2
    assert results(again[1]) == [("x", "ok")] and sorted(ended) == [0, 1]
    assert outputs_text("x") in again[1].response
    assert not loops() and kept.tb is not None


def test_ctrl_c_in_the_callback_gives_the_finished_records():
    """`RolloutInterrupted` is a `KeyboardInterrupt` and holds what had ended; the rollout goes on."""
    scripts = {"a": ["bye"], "go": [call("echo", text="x"), "bye"]}

    def interrupt(*_):
        raise KeyboardInterrupt

    with torch.no_grad(), make(scripts, [echo()]) as rollout:
        with pytest.raises(fnroll.RolloutInterrupted) as interrupted:
            rollout.generate(request(scripts), on_record=interrupt)
        assert [record.messages[0]["content"] for record in interrupted.value.batch] == ["a"]
        assert rollout.finished == interrupted.value.batch
        [record] = rollout.generate(request(["go"]))
    go_on(record, call("echo", text="x"), "bye")
