"""A Python program in a process of its own, with limits, that leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from fnroll.checks import check_int, check_number

_COOKIE = "FNROLL_TOOL_CALL"
_POLL_FIRST_S, _POLL_MOST_S = 0.002, 0.05
_READ_BYTES = 1 << 16
_READS_PER_POLL = 16
_READS_AT_END = 64
_KILL_ROUNDS = 20

# Runs in the new process, before the program and then replaced by it, so that no code has to run between fork
# and exec in a process with threads.
_LAUNCHER = """
import json, os, resource, sys
limits, program = json.loads(sys.argv[1]), sys.argv[2:]
for name, value in limits.items():
    kind = getattr(resource, name, None)
    if kind is not None:
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
try:
    import ctypes
    prctl = ctypes.CDLL(None).prctl
    prctl(1, 9, 0, 0, 0)   # PR_SET_PDEATHSIG: do not outlive the rollout
    prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphaned descendants stay below this process
except Exception:
    pass
os.execv(program[0], program)
"""


@dataclass(frozen=True)
class ProcessLimits:
    """What one program may use."""

    seconds: float = 10.0
    """Wall time, and processor time of each process."""
    memory_bytes: int = 1 << 30
    """Address space of each process."""
    processes: int = 32
    """Processes at one time, the program's own included."""
    output_bytes: int = 1 << 16
    """Output that is kept; the middle of a longer one is left out."""
    file_bytes: int = 64 << 20
    """Size of each file that is written."""

    def __post_init__(self) -> None:
        owner = type(self).__name__
        check_number(owner, "seconds", self.seconds, above=0)
        check_int(owner, "memory_bytes", self.memory_bytes, least=64 << 20)
        check_int(owner, "processes", self.processes, least=1)
        check_int(owner, "output_bytes", self.output_bytes, least=2)
        check_int(owner, "file_bytes", self.file_bytes, least=0)


@dataclass(frozen=True)
class Finished:
    """How a program ended."""

    output: str
    """Standard output and standard error, in the order written."""
    exit_code: int | None
    """As the shell has it; negative: the signal that ended it; None: it was stopped at a limit."""
    limit: str | None
    """Which limit, as words; None if the program ended by itself."""


class _Output:
    """Keeps the start and the end of a stream, and drops what lies between."""

    def __init__(self, size: int) -> None:
        self._half = size // 2
        self._start = bytearray()
        self._end = bytearray()
        self._total = 0

    def add(self, data: bytes) -> None:
        self._total += len(data)
        room = self._half - len(self._start)
        self._start += data[:room]
        self._end += data[room:]
        del self._end[: max(0, len(self._end) - self._half)]

    def text(self) -> str:
        start, end = (bytes(part).decode("utf-8", errors="replace") for part in (self._start, self._end))
        dropped = self._total - len(self._start) - len(self._end)
        if not dropped:
            return bytes(self._start + self._end).decode("utf-8", errors="replace")
        return f"{start}\n...({dropped} bytes left out)...\n{end}"


async def run_program(code: str, limits: ProcessLimits) -> Finished:
    """Run a Python program, and kill it with all its descendants at a limit, at its end or when cancelled.

    Args:
      code: the program.
      limits: what it may use.

    Returns:
      Its output and how it ended.
    """
    folder = Path(tempfile.mkdtemp(prefix="fnroll-tool-")).resolve()
    try:
        (folder / "main.py").write_bytes(code.encode("utf-8", errors="replace"))
        return await _run_in(folder, limits)
    finally:
        # Not awaited in a thread: a second cancellation would leave the folder behind.
        shutil.rmtree(folder, ignore_errors=True)


async def _run_in(folder: Path, limits: ProcessLimits) -> Finished:
    cookie = f"{_COOKIE}={uuid.uuid4().hex}"
    process = _start(folder, limits, cookie)
    output = _Output(limits.output_bytes)
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    try:
        os.set_blocking(pipe, False)
        limit = await _watch(process.pid, pipe, output, limits)
    finally:
        _kill(process.pid, cookie)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1.0)
        # Bounded, because a process that hid from the kill may hold the other end.
        for _ in range(_READS_AT_END):
            if not _drain(pipe, output):
                break
        process.stdout.close()
    exit_code = process.returncode
    if exit_code == -signal.SIGXCPU:
        limit = f"the time limit of {limits.seconds:g} seconds"
    # The folder's name is random; a traceback must read the same in every run.
    text = output.text().replace(f"{folder}/", "").replace(str(folder), ".")
    return Finished(text, None if limit else exit_code, limit)


def _start(folder: Path, limits: ProcessLimits, cookie: str) -> subprocess.Popen[bytes]:
    # -s -P and an environment of our own are what -I means, but -I would also ignore PYTHONHASHSEED, and a
    # program that prints a set must print the same in every run.
    python = [sys.executable, "-s", "-P", "-B", "-X", "utf8", "main.py"]
    name, _, value = cookie.partition("=")
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": "C.UTF-8",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        name: value,
    }
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _LAUNCHER, json.dumps(_resources(limits)), *python],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _resources(limits: ProcessLimits) -> dict[str, int]:
    resources = {
        "RLIMIT_AS": limits.memory_bytes,
        "RLIMIT_CPU": math.ceil(limits.seconds) + 1,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": 256,
    }
    if os.getuid() != 0 and (tasks := _user_tasks()) is not None:
        # The kernel counts all threads of the user, and does not apply it to root; `_watch` counts for all.
        resources["RLIMIT_NPROC"] = tasks + limits.processes
    return resources


def _user_tasks() -> int | None:
    """Threads that the user runs now; None where /proc does not tell."""
    count, user = 0, os.getuid()
    try:
        for entry in os.scandir("/proc"):
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and entry.stat().st_uid == user:
                    count += len(os.listdir(f"/proc/{entry.name}/task"))
    except OSError:
        return None
    return count or None


async def _watch(pid: int, pipe: int, output: _Output, limits: ProcessLimits) -> str | None:
    """Read the output until the program ends or passes a limit, which is returned as words."""
    end, pause = time.monotonic() + limits.seconds, _POLL_FIRST_S
    while True:
        pause = min(2 * pause, _POLL_MOST_S)
        for _ in range(_READS_PER_POLL):
            if not _drain(pipe, output):
                break
            pause = _POLL_FIRST_S
        # Not reaped here: as long as it is a zombie, no other process can get its number before the kill.
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
            return None
        if time.monotonic() > end:
            return f"the time limit of {limits.seconds:g} seconds"
        if len(_descendants(pid, limits.processes)) >= limits.processes:
            return f"the limit of {limits.processes} processes"
        await asyncio.sleep(pause)


def _drain(pipe: int, output: _Output) -> bool:
    """Read one piece; False if there is none now."""
    try:
        data = os.read(pipe, _READ_BYTES)
    except BlockingIOError:
        return False
    output.add(data)
    return bool(data)


def _descendants(pid: int, most: int) -> list[int]:
    """Processes below one, itself left out; stops soon after `most`. Empty where /proc does not tell."""
    found: list[int] = []
    front = [pid]
    while front and len(found) < most:
        parent = front.pop()
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{parent}/task"):
                children = Path(f"/proc/{parent}/task/{task}/children").read_text().split()
                front += map(int, children)
                found += map(int, children)
    return found


def _kill(pid: int, cookie: str) -> None:
    """Kill the process group, and then whoever left it, whom the environment gives away."""
    _signal(os.killpg, pid)
    for _ in range(_KILL_ROUNDS):
        # A process that forks between two rounds is found in the next.
        marked = _marked(cookie.encode())
        if not marked:
            return
        for other in marked:
            _signal(os.kill, other)


def _signal(send: object, target: int) -> None:
    assert callable(send)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        send(target, signal.SIGKILL)


def _marked(cookie: bytes) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            with contextlib.suppress(OSError):
                if cookie in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    found.append(int(name))
    return found
