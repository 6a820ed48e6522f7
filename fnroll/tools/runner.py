"""Runs the tool calls of many turns at once while the driver decodes."""

from __future__ import annotations

import asyncio
import atexit
import functools
import inspect
import math
import threading
import time
import warnings
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from types import TracebackType
from typing import Any

from fnroll.checks import check_int, check_number
from fnroll.dialogue.message import ParseError, ToolCall
from fnroll.dialogue.output import Output, clean_text, to_output
from fnroll.dialogue.tool import BadCall, BoundCall, ToolSet
from fnroll.tools.call import Call, Turn, chain_serial
from fnroll.tools.guard import LEFT_TURNED, TorchGuard, read_thread
from fnroll.tools.loop import BackgroundLoop, start_daemon
from fnroll.tools.result import ResultStatus, ToolResult

__all__ = ["ToolResult", "ToolRunner"]

CLOSE_TIMEOUT_S = 2.0
"""Seconds that running tools have for their clean-up when the runner is closed."""

STUCK_AFTER_S = 2.0
"""Seconds that the event loop may leave a new task untouched before it is given up."""

_MAX_AWAITS = 8
_PLAIN = (str, int, float, type(None))


class ToolRunner:
    """Runs tools in the background: async tools as tasks of one event loop, plain ones in a thread each.

    The driver polls: `submit` and `ready` never wait for a tool. Whatever a tool's own code raises becomes a
    text for the model. A plain tool that passes its time limit keeps its thread, which is a daemon and holds
    no slot; what it returns later is discarded. An async tool that blocks the event loop holds up the others
    for a short time only: its own limit passes, and calls that could not start move to a new loop. A call
    that must wait for another of its tool begins when that one's code has ended; its own limit runs from the
    time when that one's result was known.
    """

    def __init__(
        self, tools: ToolSet, *, max_concurrent_tools: int = 32, tool_timeout_s: float | None = 60.0
    ) -> None:
        """Prepare to run; no thread is started before the first call.

        Args:
          tools: what the model may call.
          max_concurrent_tools: most calls that run at the same time; the others wait in order.
          tool_timeout_s: seconds that each call may run, its wait for a slot not counted; None: no limit.

        Raises:
          ValueError: a limit is not positive.
        """
        name = type(self).__name__
        check_int(name, "max_concurrent_tools", max_concurrent_tools, least=1)
        check_number(name, "tool_timeout_s", tool_timeout_s, above=0, optional=True)
        self._tools = tools
        self._slots = max_concurrent_tools
        self._timeout = math.inf if tool_timeout_s is None else float(tool_timeout_s)
        self._changed = threading.Condition()
        self._turns: dict[Hashable, Turn] = {}
        self._waiting: deque[Call] = deque()
        self._running: set[Call] = set()
        self._finished: deque[Turn] = deque()
        self._loops: list[BackgroundLoop] = []
        self._guard = TorchGuard()
        self._is_closed = False
        self._is_starting = False
        # A script that ends without `close` must not leave the processes of its tools behind.
        atexit.register(self.close)

    def submit(self, key: Hashable, calls: Sequence[ToolCall | ParseError], metadata: Any = None) -> None:
        """Start all calls of one turn.

        Args:
          key: names the turn in `ready` and `cancel`; a `TurnKey` if a tool asks for a `ToolContext`.
          calls: in the order in which the results are wanted; a parse error is answered with its own text.
          metadata: of the record, for the `ToolContext`; each tool that asks for one gets a copy.

        Raises:
          RuntimeError: the runner is closed.
          ValueError: the key is in use, or no `TurnKey` where a tool needs one.
        """
        turn = Turn(key, [None] * len(calls), metadata)
        made = []
        for index, call in enumerate(calls):
            answer = self._check(call)
            if isinstance(answer, ToolResult):
                turn.results[index] = answer
                continue
            made.append(Call(turn, index, answer))
            made[-1].check_key()
        started = chain_serial(made)
        with self._changed:
            if self._is_closed:
                raise RuntimeError("ToolRunner: submit was called after close.")
            if key in self._turns:
                raise ValueError(f"ToolRunner: the turn {key!r} was submitted before and not taken yet.")
            self._turns[key] = turn
            self._waiting.extend(started)
            self._finish(turn)
            self._start()

    def _check(self, call: ToolCall | ParseError) -> ToolResult | BoundCall:
        if not isinstance(call, ToolCall):
            return ToolResult(clean_text(call.text), "parse_error", 0.0)
        answer = self._tools.bind(call)
        return ToolResult(answer.text, answer.status, 0.0) if isinstance(answer, BadCall) else answer

    def ready(self) -> list[tuple[Hashable, tuple[ToolResult, ...]]]:
        """Take the turns whose every call has ended; never waits.

        Returns:
          Key and results of each, the results in the order of the calls. A turn is returned once.
        """
        self._guard.look()
        self._warn()
        with self._changed:
            self._expire()
            turns = list(self._finished)
            self._finished.clear()
            for turn in turns:
                del self._turns[turn.key]
        return [(turn.key, tuple(result for result in turn.results if result)) for turn in turns]

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until `ready` has something to give.

        Args:
          timeout: most seconds to wait; None: as long as it takes.

        Returns:
          Whether there is something; False at once if no turn is in flight.
        """
        end = math.inf if timeout is None else time.monotonic() + timeout
        with self._changed:
            while True:
                self._expire()
                now = time.monotonic()
                if self._finished or not self._turns or now >= end:
                    return bool(self._finished)
                self._changed.wait(min(end - now, self._next_deadline(now), threading.TIMEOUT_MAX))

    def cancel(self, key: Hashable) -> None:
        """Forget a turn and end its calls; an unknown key is ignored.

        Args:
          key: as given to `submit`.
        """
        with self._changed:
            turn = self._turns.pop(key, None)
            if turn is None:
                return
            self._finished = deque(other for other in self._finished if other is not turn)
            self._waiting = deque(call for call in self._waiting if call.turn is not turn)
            for call in [call for call in self._running if call.turn is turn]:
                self._abandon(call)
            self._start()
            self._changed.notify_all()

    def close(self) -> None:
        """End all calls and the event loop; takes a few seconds at most, and may be called twice."""
        with self._changed:
            self._is_closed = True
            self._turns.clear()
            self._waiting.clear()
            self._finished.clear()
            for call in list(self._running):
                self._abandon(call)
            loops, self._loops = self._loops, []
            self._changed.notify_all()
        atexit.unregister(self.close)
        self._guard.look()
        self._guard.close()
        for loop in loops:
            loop.stop(CLOSE_TIMEOUT_S)
        end = time.monotonic() + CLOSE_TIMEOUT_S + 0.5
        for loop in loops:
            loop.join(max(end - time.monotonic(), 0.0))
        self._warn()

    def _warn(self) -> None:
        """Say what tools did to torch; here, for a warning must not be raised in a tool's thread."""
        for note in self._guard.take_notes():
            warnings.warn(note, RuntimeWarning, stacklevel=3)

    def __enter__(self) -> ToolRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What follows runs under the lock, up to the next comment.

    def _start(self) -> None:
        if self._is_starting:  # a call that could not start has ended, and the loop below goes on
            return
        self._is_starting = True
        try:
            while self._waiting and len(self._running) < self._slots:
                call = self._waiting.popleft()
                self._running.add(call)
                self._start_one(call)
        finally:
            self._is_starting = False

    def _start_one(self, call: Call) -> None:
        if call.before is not None:
            call.started = call.started or time.monotonic()
            if not call.before.has_ended:
                return  # `_end` goes on
        call.is_begun = True
        if call.bound.tool.is_async:
            self._post(call)
            return
        call.started = call.started or time.monotonic()
        try:
            start_daemon(functools.partial(self._run_plain, call), f"fnroll-tool-{call.bound.tool.name}")
        except RuntimeError as error:  # no more threads
            self._end(call)
            self._settle(call, Output(call.explain(error), True))

    def _end(self, call: Call) -> None:
        """Note that a call's code runs no more, and let the one begin that waited for it."""
        call.has_ended = True
        if call.after in self._running and not call.after.is_begun:
            self._start_one(call.after)

    def _post(self, call: Call) -> None:
        """Hand a call to the event loop."""
        if not self._loops:
            self._loops.append(BackgroundLoop())
        call.loop, call.posted = self._loops[-1], time.monotonic()
        call.loop.call(functools.partial(self._begin, call, call.loop))

    def _settle(self, call: Call, output: Output, status: ResultStatus | None = None) -> None:
        """Record how a call ended. Only the first end counts, and what ends too late is a timeout."""
        if call.is_settled:
            return
        call.is_settled = True
        self._running.discard(call)
        now = time.monotonic()
        seconds = now - (now if call.started is None else call.started)
        if seconds > self._timeout:
            name = call.bound.tool.name
            output = Output(f"Error: tool {name!r} did not finish within {self._timeout:g} seconds.", True)
            status = "timeout"
        call.turn.results[call.index] = ToolResult(
            output.text, status or ("error" if output.is_error else "ok"), seconds
        )
        self._finish(call.turn)
        if (after := call.after) is not None:
            if call.before is not None and not call.is_begun:  # the next one waits for the same code
                after.before, call.before.after = call.before, after
            self._waiting.appendleft(after)
        self._start()

    def _finish(self, turn: Turn) -> None:
        if None not in turn.results and self._turns.get(turn.key) is turn:
            self._finished.append(turn)
            self._changed.notify_all()

    def _abandon(self, call: Call) -> None:
        """Take a call out of the running ones, whatever its tool still does."""
        call.is_settled = True
        self._running.discard(call)
        self._end_task(call)

    def _end_task(self, call: Call) -> None:
        if call.posted is not None and inspect.iscoroutine(call.value):
            # It will not be awaited any more, about which Python would complain.
            call.value.close()
        if call.loop is not None and call.task is not None:
            call.loop.call(call.task.cancel)

    def _expire(self) -> None:
        now = time.monotonic()
        for call in list(self._running):
            if call.started is not None and now - call.started > self._timeout:
                self._settle(call, Output("", True))
                self._end_task(call)
        stuck = [c for c in self._running if c.posted is not None and now - c.posted > STUCK_AFTER_S]
        if stuck:
            # The old loop stays in the list, where its tasks go on if it ever does, and until then.
            self._loops.append(BackgroundLoop())
            self._repost(stuck)

    def _next_deadline(self, now: float) -> float:
        """Seconds until `_expire` may have something to do."""
        ends = [c.started + self._timeout for c in self._running if c.started is not None]
        ends += [c.posted + STUCK_AFTER_S for c in self._running if c.posted is not None]
        return max(min(ends, default=math.inf) - now, 0.0) + 0.001

    # What follows runs in a tool's own thread, or in that of the event loop.

    def _run_plain(self, call: Call) -> None:
        self._guard.enter(call.bound.tool.name)
        try:
            value = call.make()
            is_awaitable = inspect.isawaitable(value)
            output = Output("", False) if is_awaitable else to_output(value)
        except BaseException as error:
            is_awaitable, output = False, Output(call.explain(error), True)
        self._guard.leave(call.bound.tool.name)
        with self._changed:
            if is_awaitable and not call.is_settled:
                call.value = value
                self._post(call)
                return
            if is_awaitable and inspect.iscoroutine(value):
                value.close()
            self._end(call)
            self._settle(call, output)

    def _begin(self, call: Call, loop: BackgroundLoop) -> None:
        with self._changed:
            if call.loop is not loop:
                return
            if call.is_settled:
                self._end(call)
                return
            call.task = loop.create_task(self._run_async(call, loop))
            # Not in the task: one that is cancelled before its first step never runs.
            call.task.add_done_callback(lambda _: self._end_async(call, loop))

    def _end_async(self, call: Call, loop: BackgroundLoop) -> None:
        with self._changed:
            if call.loop is loop:
                self._end(call)

    def _leave_loop(self, loop: BackgroundLoop) -> None:
        """Give up a loop in whose thread a tool left one of torch's switches turned."""
        loop.busy -= 1
        if self._is_closed:
            return
        is_spoiled = loop.fresh is not None and read_thread() != loop.fresh
        if is_spoiled and loop is self._loops[-1]:
            # Whether it is spoiled for good, only its last call tells: another may be in a `with` block.
            self._loops.append(BackgroundLoop())
        if loop is not self._loops[-1]:
            self._repost([call for call in self._running if call.loop is loop])
        if loop.busy:
            return
        if is_spoiled:
            self._guard.note(loop.names, LEFT_TURNED)
        loop.names.clear()
        if loop is not self._loops[-1]:
            self._loops.remove(loop)
            loop.stop(CLOSE_TIMEOUT_S)

    def _repost(self, calls: Iterable[Call]) -> None:
        """Hand those that have not begun to the newest loop."""
        for call in calls:
            if call.posted is not None:
                self._post(call)

    async def _run_async(self, call: Call, loop: BackgroundLoop) -> None:
        with self._changed:
            # Not in `_begin`: another task of the same round may block the loop before this one has its turn.
            if call.is_settled or call.loop is not loop:
                return
            call.posted = None
            if call.started is None:
                call.started = time.monotonic()
            # The time limit runs from now, and may end earlier than what `wait` sleeps for.
            self._changed.notify_all()
            loop.busy += 1
            loop.names.add(call.bound.tool.name)
        self._guard.enter(call.bound.tool.name)
        try:
            value = call.value
            if value is None:
                value = call.make()
            for _ in range(_MAX_AWAITS):
                if not inspect.isawaitable(value):
                    break
                value = await value
            if isinstance(value, _PLAIN):
                output = to_output(value)
            else:
                # Writing a value runs its code, which may take long and would block the loop.
                output = await asyncio.get_running_loop().run_in_executor(None, to_output, value)
        except BaseException as error:
            output = Output(call.explain(error), True)
        self._guard.leave(call.bound.tool.name)
        with self._changed:
            self._leave_loop(loop)
            self._end(call)
            self._settle(call, output)
