"""The tool `python`: runs a program that the model wrote. It is not a sandbox."""

from __future__ import annotations

import os

from fnroll.dialogue.tool import Tool, ToolError
from fnroll.tools.builtin.process import Finished, ProcessLimits, run_program


class PythonTool:
    """Runs Python programs, each in a process of its own.

    This protects a rollout from programs that are wrong: that never end, fill the memory, flood the output or
    leave processes behind. It does NOT protect the machine from programs that are hostile: they run as the
    same user, with the same files and the same network. Run untrusted models in a container or a virtual
    machine.
    """

    def __init__(self, limits: ProcessLimits | None = None) -> None:
        """Prepare to run.

        Args:
          limits: of each call; None: the defaults of `ProcessLimits`.

        Raises:
          RuntimeError: this system has no process groups.
        """
        if os.name != "posix":
            raise RuntimeError(
                "The tool 'python' needs a POSIX system; it kills programs by their process group."
            )
        self.limits = limits if limits is not None else ProcessLimits()

    async def __call__(self, code: str) -> str:
        """Runs a Python program in a new process and returns what it prints.

        Args:
          code: the program; use print() for what you want to see, nothing is kept between calls

        Returns:
          Standard output and standard error.
        """
        return _text(await run_program(code, self.limits))


def python_tool(limits: ProcessLimits | None = None) -> Tool:
    """Make the tool.

    Args:
      limits: of each call; None: the defaults of `ProcessLimits`.

    Returns:
      A tool with the one argument `code`.
    """
    return Tool.from_object(PythonTool(limits), name="python")


def _text(finished: Finished) -> str:
    """What the model reads; a program stopped at a limit is an error of the call, a failing one is not."""
    output = finished.output
    if finished.limit is not None:
        printed = f" It printed:\n{output}" if output else ""
        raise ToolError(f"the program was stopped at {finished.limit}.{printed}")
    if not finished.exit_code:
        return output or "(no output)"
    code = finished.exit_code
    how = f"[exit code {code}]" if code > 0 else f"[ended by signal {-code}]"
    return f"{output}{'' if not output or output.endswith(chr(10)) else chr(10)}{how}"
