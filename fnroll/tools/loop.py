"""An event loop in a thread of its own, which nothing that runs in it can take down."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from fnroll.tools.guard import read_thread


def start_daemon(function: Callable[[], object], name: str) -> threading.Thread:
    """Run a function in a new thread that does not keep the interpreter alive.

    Args:
      function: what to run.
      name: the thread's name.

    Returns:
      The started thread.
    """
    thread = threading.Thread(target=function, name=name, daemon=True)
    thread.start()
    return thread


class DaemonExecutor(ThreadPoolExecutor):
    """Runs each job in a new daemon thread.

    The standard pool joins its threads when the interpreter exits, so one hung job would block the exit, and
    on Python 3.11 a job that raises StopIteration never completes its asyncio future.
    """

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start a job.

        Args:
          function: what to run.
          args: its positional arguments.
          kwargs: its keyword arguments.

        Returns:
          A future of the job's result; StopIteration arrives as RuntimeError, as in a coroutine.
        """
        future: Future[Any] = Future()
        start_daemon(functools.partial(_fulfil, future, function, args, kwargs), "fnroll-tool-job")
        return future


def _fulfil(future: Future[Any], function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function(*args, **kwargs)
    except StopIteration as error:
        wrapped = RuntimeError("function raised StopIteration")
        wrapped.__cause__ = error
        future.set_exception(wrapped)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


class BackgroundLoop:
    """An asyncio loop that runs in a daemon thread until it is closed."""

    def __init__(self) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(DaemonExecutor())
        # What a tool's forgotten tasks raise is nobody's result, and a training log is no place for it.
        self._loop.set_exception_handler(lambda loop, context: None)
        self._is_closed = False
        self.busy = 0
        """How many of the calls that began here have not ended."""
        self.names: set[str] = set()
        """The tools of these calls, and of those that ended since there was none."""
        self.fresh: tuple[Any, ...] | None = None
        """Torch's switches for the thread, before any call."""
        self._thread = start_daemon(self._run, "fnroll-tool-loop")

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self.fresh = read_thread()
        while not self._is_closed:
            try:
                self._loop.run_forever()
            except BaseException:
                # A task that a tool started itself raised SystemExit, which stops the loop.
                continue
        self._loop.close()

    def call(self, function: Callable[[], object]) -> None:
        """Run a function on the loop's thread, soon; does nothing once the loop has ended.

        Args:
          function: must not block.
        """
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def create_task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task; only from the loop's own thread.

        Args:
          coroutine: must not raise.

        Returns:
          The task.
        """
        return self._loop.create_task(coroutine)

    def stop(self, timeout: float) -> None:
        """Begin the end: cancel all tasks and let them clean up; do not wait.

        Args:
          timeout: seconds that the tasks have for that.
        """
        self.call(lambda: self._loop.create_task(self._shutdown(timeout)))

    def join(self, timeout: float) -> bool:
        """Wait for the thread to end; one that is stuck is left behind as a daemon.

        Args:
          timeout: most seconds to wait.

        Returns:
          Whether the thread has ended.
        """
        self._thread.join(timeout)
        return not self._thread.is_alive()

    async def _shutdown(self, timeout: float) -> None:
        try:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=timeout)
        finally:
            self._is_closed = True
            self._loop.stop()
