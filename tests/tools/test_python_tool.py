import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fnroll.dialogue.message import ToolCall
from fnroll.dialogue.tool import ToolError, ToolSet
from fnroll.tools.builtin import process
from fnroll.tools.builtin.process import Finished, ProcessLimits, run_program
from fnroll.tools.builtin.python import PythonTool, python_tool
from fnroll.tools.runner import ToolRunner

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux's /proc")

WATCHDOG_S = 60.0


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After each test no marked process lives and the folder for temporary files is empty."""

    def fail(*_: object) -> None:
        raise TimeoutError(f"the test took longer than {WATCHDOG_S:g} seconds")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, WATCHDOG_S)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    end = time.monotonic() + 2
    while marked(tmp_path) and time.monotonic() < end:
        time.sleep(0.02)
    assert marked(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def marked(folder: Path) -> list[int]:
    """Living processes that a call with its files in this folder started, or that were started by those."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"TMPDIR={folder}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def run(code: str, **limits: Any) -> str:
    return asyncio.run(PythonTool(ProcessLimits(**limits))(code=code))


def refused(code: str, **limits: Any) -> str:
    with pytest.raises(ToolError) as caught:
        run(code, **limits)
    return str(caught.value)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("print(2 + 2)", "4\n"),
        ("x = 1", "(no output)"),
        ("", "(no output)"),
        (
            "import sys\nprint('a', flush=True)\nprint('b', file=sys.stderr)\nsys.exit(3)",
            "a\nb\n[exit code 3]",
        ),
        ("import sys; sys.exit('no')", "no\n[exit code 1]"),
        ("print('end', end=''); raise SystemExit(2)", "end\n[exit code 2]"),
        ("import os; os.kill(os.getpid(), 11)", "[ended by signal 11]"),
        ("print('grün 😀')", "grün 😀\n"),
        ("import sys; sys.stdout.buffer.write(b'a\\xffb')", "a\ufffdb"),
        ("print(input())", None),
        ("x = (", None),
        ("1/0", None),
        ("print('\ud800')", "?\n"),
    ],
)
def test_output_and_exit(code: str, text: str | None) -> None:
    found = run(code)
    if text is not None:
        assert found == text
    else:
        # A traceback names the program's own file, and no folder that differs in each run.
        assert found.startswith(('Traceback (most recent call last):\n  File "main.py"', '  File "main.py"'))
        assert found.endswith(
            "Error: EOF when reading a line\n[exit code 1]" if "input" in code else "[exit code 1]"
        )
    assert run(code) == found


def test_program_is_isolated_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    code = (
        "import os, sys; print('SECRET' in os.environ, '/nowhere' in sys.path, os.getcwd(), '' in sys.path)"
    )
    assert run(code) == "False False . False\n"
    same = "print(list({'a', 'b', 'c', 'd', 'e'}), hash('x'))"
    assert run(same) == run(same)


def test_files_are_written_in_a_folder_that_goes() -> None:
    assert (
        run("open('a', 'w').write('x' * 10); import os; print(sorted(os.listdir()))") == "['a', 'main.py']\n"
    )
    assert "File too large" in run("open('a', 'w').write('x' * 10000)", file_bytes=5000)


@pytest.mark.parametrize(
    "code", ["while True: pass", "import time; time.sleep(99)", "while True:\n try: input()\n except: pass"]
)
def test_time_limit(code: str) -> None:
    start = time.monotonic()
    assert refused(code, seconds=0.5) == "the program was stopped at the time limit of 0.5 seconds."
    assert time.monotonic() - start < 8


def test_output_before_the_limit_is_told() -> None:
    text = refused("print('so far', flush=True)\nwhile True: pass", seconds=1.5)
    assert text == "the program was stopped at the time limit of 1.5 seconds. It printed:\nso far\n"


def test_processor_time_of_many_threads_of_one_process_is_limited() -> None:
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_CPU))"
    assert run(code, seconds=2) == "(3, 3)\n"


def test_memory_limit() -> None:
    text = run("x = bytearray(1 << 30)", memory_bytes=256 << 20)
    assert text.endswith("MemoryError\n[exit code 1]")
    assert run("x = bytearray(100 << 20); print(len(x))", memory_bytes=256 << 20) == "104857600\n"


def test_output_flood_is_drained_and_cut_in_the_middle() -> None:
    code = "import sys\nsys.stdout.write('first\\n' + 'x' * 5_000_000 + '\\nlast\\n')"
    text = run(code, output_bytes=1000)
    assert text.startswith("first\nxxx") and text.endswith("xxx\nlast\n")
    assert "...(4999012 bytes left out)..." in text and len(text) < 1100
    endless = refused("while True: print('x' * 1000)", seconds=0.5, output_bytes=1000)
    assert "time limit" in endless and len(endless) < 1300


SLEEPER = (
    "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)']{})\n"
)


@pytest.mark.parametrize("kind", ["", ", start_new_session=True"])
def test_grandchildren_die_at_the_limit_and_at_the_end(kind: str) -> None:
    start = time.monotonic()
    # It holds the other end of the pipe, and must not be waited for.
    assert run(SLEEPER.format(kind) + "print('x')") == "x\n"
    assert "time limit" in refused(SLEEPER.format(kind) + "import time; time.sleep(99)", seconds=0.5)
    assert time.monotonic() - start < 20


def test_process_with_an_empty_environment_dies_with_its_group() -> None:
    pid = int(run("import subprocess; print(subprocess.Popen(['sleep', '99'], env={}).pid)"))
    end = time.monotonic() + 2
    while is_alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert not is_alive(pid)


def is_alive(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_daemon_that_detached_itself_dies() -> None:
    child = "if os.fork() == 0:\n os.setsid()\n if os.fork() == 0: time.sleep(99)\n os._exit(0)\n"
    code = f"import os, time\n{child}os.wait()\n"
    assert run(code + "print('x')") == "x\n"


def test_too_many_processes_are_stopped() -> None:
    many = (
        "import subprocess, sys, time\nfor _ in range({}): subprocess.Popen(['sleep', '99'])\ntime.sleep({})"
    )
    text = refused(many.format(10, 99), processes=8)
    assert text == "the program was stopped at the limit of 8 processes."
    assert run(many.format(5, 0.2), processes=8) == "(no output)"


def test_fork_bomb_is_stopped() -> None:
    code = "import os, time\nfor _ in range(9):\n os.fork()\n time.sleep(0.03)\ntime.sleep(99)"
    assert "the limit of 16 processes" in refused(code, processes=16, seconds=5)


def test_kernel_limits_the_processes_of_a_user_other_than_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    monkeypatch.setattr(process, "_user_tasks", lambda: 70)
    assert process._resources(ProcessLimits(processes=5))["RLIMIT_NPROC"] == 75
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert "RLIMIT_NPROC" not in process._resources(ProcessLimits())


@pytest.mark.parametrize("how", ["timeout", "cancel", "close"])
def test_runner_ends_the_program_with_its_group(how: str, tmp_path: Path) -> None:
    code = SLEEPER.format("") + "import time; time.sleep(99)"
    with ToolRunner(ToolSet([python_tool()]), tool_timeout_s=0.5 if how == "timeout" else 30) as runner:
        runner.submit(0, [ToolCall("python", {"code": code}, (0, 0))])
        end = time.monotonic() + 5
        while len(marked(tmp_path)) < 2 and time.monotonic() < end and how != "timeout":
            time.sleep(0.02)
        if how == "timeout":
            assert runner.wait(30)
            assert runner.ready()[0][1][0].text == "Error: tool 'python' did not finish within 0.5 seconds."
        elif how == "cancel":
            runner.cancel(0)


LEAVING = """
import sys, time
from fnroll.dialogue.message import ToolCall
from fnroll.dialogue.tool import ToolSet
from fnroll.tools.builtin import get_tool
from fnroll.tools.runner import ToolRunner

runner = ToolRunner(ToolSet([get_tool("python")]))
runner.submit(0, [ToolCall("python", {"code": sys.argv[1]}, (0, 0))])
runner.wait(1.0)
print("left")
"""


def test_script_that_ends_leaves_no_program_behind(tmp_path: Path) -> None:
    code = SLEEPER.format("") + "import time; time.sleep(99)"
    done = subprocess.run(
        [sys.executable, "-c", LEAVING, code],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("left\n", "", 0)


def test_programs_run_next_to_each_other() -> None:
    code = "import time; time.sleep(1); print('x')"
    with ToolRunner(ToolSet([python_tool()])) as runner:
        start = time.monotonic()
        runner.submit(0, [ToolCall("python", {"code": code}, (0, 0))] * 4)
        assert runner.wait(30)
        ((_, results),) = runner.ready()
        assert [result.text for result in results] == ["x\n"] * 4
        assert time.monotonic() - start < 3.9


def test_end_of_a_program_is_told_apart_from_a_limit() -> None:
    assert asyncio.run(run_program("", ProcessLimits())) == Finished("", 0, None)
    finished = asyncio.run(run_program("while 1: pass", ProcessLimits(seconds=0.3)))
    assert finished == Finished("", None, "the time limit of 0.3 seconds")


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"seconds": 0}, "ProcessLimits.seconds is 0; it must be a finite number above 0"),
        ({"memory_bytes": 1}, "ProcessLimits.memory_bytes is 1; it must be an int of at least 67108864"),
        ({"processes": 0}, "ProcessLimits.processes is 0; it must be an int of at least 1"),
        ({"output_bytes": 1.5}, "ProcessLimits.output_bytes is 1.5; it must be an int of at least 2"),
    ],
)
def test_limits_are_checked(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        ProcessLimits(**limits)
    assert str(caught.value) == message
