"""Torch's switches that all threads share: a tool that turns one is named, and the switch is put back.

Of a thread's own switches (grad mode, autocast, the default device) none needs to be put back: a plain tool
has a thread of its own, and a thread of async tools in which one was left turned is given up. The noise of a
rollout comes from no generator, so a tool may seed torch's or draw from it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

LEFT_TURNED = "left torch's grad mode, autocast or default device turned for other async tools; it was undone"
"""What is noted of a tool that spoiled its thread."""


class _Switch(NamedTuple):
    name: str
    read: Callable[[Any], Any]
    """Takes the module torch, as all here do; it may never be imported."""
    write: Callable[[Any, Any], object]
    is_seen_by_all: bool = True
    """Whether a thread that did not turn it can read it."""


def _read_determinism(torch: Any) -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _write_determinism(torch: Any, value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _read_cudnn(torch: Any) -> tuple[bool, bool]:
    return torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark


def _write_cudnn(torch: Any, value: tuple[bool, bool]) -> None:
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = value


_SHARED = (
    _Switch(
        "default dtype", lambda torch: torch.get_default_dtype(), lambda torch, v: torch.set_default_dtype(v)
    ),
    _Switch("deterministic algorithms (on, only warn)", _read_determinism, _write_determinism),
    _Switch("cuDNN (deterministic, benchmark)", _read_cudnn, _write_cudnn),
    _Switch(
        "float32 precision of matrix products",
        lambda torch: torch.get_float32_matmul_precision(),
        lambda torch, value: torch.set_float32_matmul_precision(value),
    ),
    _Switch(
        "number of threads",
        lambda torch: torch.get_num_threads(),
        lambda torch, value: torch.set_num_threads(value),
        is_seen_by_all=False,
    ),
)


class TorchGuard:
    """Watches the shared switches while tools run in this process; safe to use from any thread."""

    def __init__(self) -> None:
        """Watch nothing yet."""
        self._lock = threading.Lock()
        self._before: dict[_Switch, Any] = {}
        self._running: list[str] = []
        self._notes: dict[str, bool] = {}
        self._is_closed = False

    def enter(self, name: str) -> None:
        """Note that a tool begins; in the thread that runs it.

        Args:
          name: of the tool.
        """
        with self._lock:
            if not self._running:
                torch = _find_torch()
                self._before = {switch: switch.read(torch) for switch in _SHARED} if torch else {}
            self._running.append(name)

    def leave(self, name: str) -> None:
        """Note that a tool has ended, and put back what it turned; in the thread that ran it.

        Args:
          name: of the tool.
        """
        with self._lock:
            self._put_back(is_tool_thread=True)
            self._running.remove(name)

    def look(self) -> None:
        """Put back what was turned by a tool that has not ended yet; from any thread."""
        with self._lock:
            if self._running:
                self._put_back(is_tool_thread=False)

    def close(self) -> None:
        """Touch nothing any more, whatever tools that have not ended still do."""
        with self._lock:
            self._is_closed = True

    def _put_back(self, *, is_tool_thread: bool) -> None:
        if self._is_closed:
            return
        torch = _find_torch()
        for switch, before in self._before.items():
            if (is_tool_thread or switch.is_seen_by_all) and (now := switch.read(torch)) != before:
                switch.write(torch, before)
                self._add(
                    self._running,
                    f"turned torch's {switch.name} from {before} to {now} for all threads; it was put back",
                )

    def note(self, names: Iterable[str], text: str) -> None:
        """Remember what a tool did.

        Args:
          names: of the tools that may have done it.
          text: what follows their names in the sentence.
        """
        with self._lock:
            self._add(names, text)

    def _add(self, names: Iterable[str], text: str) -> None:
        tools = sorted({repr(name) for name in names})
        who = f"tool {tools[0]}" if len(tools) == 1 else f"one of the tools {', '.join(tools)}"
        self._notes.setdefault(f"{who} {text}.", False)

    def take_notes(self) -> list[str]:
        """Return what was noted and not yet taken, a sentence each, none twice."""
        with self._lock:
            notes = [note for note, is_taken in self._notes.items() if not is_taken]
            self._notes.update(dict.fromkeys(notes, True))
        return notes


def read_thread() -> tuple[Any, ...] | None:
    """Read the switches that torch has for the present thread; None if it was never imported."""
    torch = _find_torch()
    if torch is None:
        return None
    autocast = tuple(torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_device(), autocast)


def _find_torch() -> Any:
    """The module torch, if it is imported to its end: half of it has no switches."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "compile") else None
