"""Kills rollouts for real, at drawn moments, and goes on with them: run by `test_save.py` as a program.

One process imports everything and forks a child for each rollout, so that each costs a fraction of a second.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

import fnroll
from fnroll.compile.steps import LoweredSteps
from fnroll.records.files.saver import read_request
from fnroll.rollout.flight.resume import describe_run
from fnroll.tools.log import EffectLog
from property_tests.test_resume import request_of, rollout_of, sampling_of
from property_tests.test_turns import model, tools

CASE = {
    "prompts": ["a", "b", "ab", "?"], "n": 2, "seed": 5, "temperature": 1.0, "top_p": 1.0,
    "max_length": 480, "chars": 30,
}  # fmt: skip
SCHEDULE = {
    "rows": 3, "batching": "continuous", "poll_every": 1, "max_concurrent_tools": 4,
    "latencies": [0.0, 0.01, 0.03],
}  # fmt: skip


SAVES = [1, 2, 5]


def stop_at(moment):
    """Let this process die at its n-th event: a step, half a save, one not yet in place, half a line."""
    count = 0

    def wrap(owner, name, half=lambda *_: None):
        function = getattr(owner, name)

        def ticking(*args, **options):
            nonlocal count
            count += 1
            if count == moment:
                half(*args)
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **options)

        setattr(owner, name, ticking)

    def half_a_line(log, *lines):
        data = "".join(json.dumps(line) + "\n" for line in lines).encode()
        os.write(log._file.fileno(), data[: len(data) * 2 // 3])

    wrap(LoweredSteps, "decode")
    wrap(EffectLog, "_append", half_a_line)
    wrap(os, "fsync", lambda number: os.ftruncate(number, os.fstat(number).st_size // 2))
    wrap(Path, "replace")
    return lambda: count


def used_tools():
    """The chatter's tools, and one whose answer is never the same: only the log can give it again."""

    def repeat(text: str, times: int) -> str:
        """Repeat a text.

        Args:
            text: what to repeat.
            times: how often.
        """
        time.sleep(0.01)
        return f"{text * times} {time.monotonic_ns()}"

    add, _, fail = tools(SCHEDULE["latencies"])
    return [add, repeat, fail]


def roll(folder, every, is_resumed, **more):
    paths = {"save": str(folder / "save.jsonl"), "save_every": every, "log": str(folder / "log.jsonl")}
    sampling, request = sampling_of(CASE), request_of(CASE)
    with torch.no_grad(), rollout_of(CASE, SCHEDULE, **{**paths, **more}) as rollout:
        if is_resumed:
            run = describe_run(CASE["seed"], 0, sampling, rollout.config, model())
            request = read_request(paths["save"], request, run)
        return rollout.generate(request, sampling, seed=CASE["seed"])


def in_a_child(work):
    """Return the process id of a child that does some work and leaves."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
        os._exit(0)
    finally:
        os._exit(1)


def was_killed(pid):
    _, status = os.waitpid(pid, 0)
    assert status in (0, signal.SIGKILL), f"a child ended with {status}"
    return status == signal.SIGKILL


def main(folder):
    """Say how often a rollout was killed, and exit with 1 if one shows it."""
    draw, total, killed = random.Random(0), folder / "total", 0

    def whole():
        count, start = stop_at(0), time.perf_counter()
        roll(folder, max(SAVES), False, used=tools(SCHEDULE["latencies"])).save(folder / "whole.jsonl")
        total.write_text(json.dumps([count(), time.perf_counter() - start]))

    assert not was_killed(in_a_child(whole))
    events, seconds = json.loads(total.read_text())  # the fewest events: with the fewest saves
    for number in range(6):
        here = folder / str(number)
        here.mkdir()
        used = used_tools() if number % 3 == 2 else tools(SCHEDULE["latencies"])

        def live(here=here, used=used, is_resumed=False, moment=0):
            stop_at(moment)
            roll(here, draw.choice(SAVES), is_resumed, used=used).save(here / "batch.jsonl")

        left = 1.0
        for attempt in range(2):  # the second one kills what goes on, which has less to do
            share = draw.uniform(0.0, left)
            left -= share
            moment = 1 + int(share * (events - 1))
            if number % 3 == 1:  # from outside, at any moment
                pid = in_a_child(lambda attempt=attempt: live(is_resumed=attempt > 0))
                time.sleep(share * seconds)
                os.kill(pid, signal.SIGKILL)
                killed += was_killed(pid)
            else:
                killed += was_killed(
                    in_a_child(
                        lambda attempt=attempt, moment=moment: live(is_resumed=attempt > 0, moment=moment)
                    )
                )
        assert not was_killed(in_a_child(lambda: live(is_resumed=True)))
        batch = fnroll.RolloutBatch.load(here / "batch.jsonl")
        if number % 3 == 2:
            assert batch == roll_from_log(here), f"rollout {number} is not what its log gives"
        else:
            assert batch == fnroll.RolloutBatch.load(folder / "whole.jsonl"), f"rollout {number} differs"
    print(f"{killed} killed of {events} events")


def roll_from_log(here):
    """Return the batch that the log alone gives, in a child: a fork must find no thread here."""

    def replay():
        roll(here, 100, False, log=None, save=None, replay=str(here / "log.jsonl")).save(
            here / "replay.jsonl"
        )

    assert not was_killed(in_a_child(replay))
    return fnroll.RolloutBatch.load(here / "replay.jsonl")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
