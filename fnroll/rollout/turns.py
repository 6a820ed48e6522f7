"""Tools and log of one call, opened before it and closed behind it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack

from fnroll.paths import at_step
from fnroll.rollout.flight.budget import Budget
from fnroll.rollout.flight.conversation import Conversations
from fnroll.rollout.flight.flight import Flight
from fnroll.rollout.flight.join import open_segment
from fnroll.rollout.flight.resume import check_single_turn
from fnroll.rollout.setup import Setup
from fnroll.tools.log import EffectLog, read_log
from fnroll.tools.replay import ReplayRunner
from fnroll.tools.result import Runner
from fnroll.tools.runner import ToolRunner
from fnroll.tools.schedule import Schedule


def open_turns(
    stack: ExitStack, setup: Setup, flights: Sequence[Flight], budget: Budget, *, seed: int, step: int
) -> tuple[Conversations | None, list[Flight]]:
    """Start what runs between turns, to be closed with `stack`, and give flights their conversations.

    Returns:
      The conversations, None in single-turn rollouts; the flights.

    Raises:
      ValueError: naming the record that cannot be gone on with.
      LogError: if a log is damaged.
    """
    config = setup.config
    if not setup.multi_turn or setup.chat is None or setup.parser is None:
        for flight in flights:
            check_single_turn(flight)
        return None, list(flights)
    log, known = None, None
    if config.log is not None:
        path = at_step(config.log, step)
        if any(flight.begun for flight in flights) and os.path.exists(path):
            known = read_log(path)
        log = stack.enter_context(EffectLog.open(path))
    runner, schedule = _open_runner(setup, step)
    stack.callback(runner.close)
    chat = setup.chat
    turns = Conversations(
        chat, setup.parser, setup.tools.schemas, runner, budget, log, known, schedule, seed=seed, step=step
    )
    stack.callback(turns.log_ready)
    return turns, [open_segment(chat, flight) for flight in flights]


def _open_runner(setup: Setup, step: int) -> tuple[Runner, Schedule | None]:
    config = setup.config
    if config.replay is not None:
        events = read_log(at_step(config.replay, step))
        return ReplayRunner(events), Schedule(events)
    return ToolRunner(
        setup.tools,
        max_concurrent_tools=config.max_concurrent_tools,
        tool_timeout_s=config.tool_timeout_s,
    ), None
