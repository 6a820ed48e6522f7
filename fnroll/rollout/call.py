"""One `generate` call: what it was given, how it runs, and what has come of it."""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from fnroll.compile.steps import LoweredSteps
from fnroll.config import SamplingConfig
from fnroll.paths import at_step
from fnroll.records.batch import RolloutBatch
from fnroll.records.files.saver import Saver, check_overwrite
from fnroll.records.record import RolloutRecord
from fnroll.records.run import check_run
from fnroll.records.status import Reason
from fnroll.rollout.buffers import Buffers
from fnroll.rollout.cache.prefixes import count_distinct
from fnroll.rollout.driver.driver import Driver
from fnroll.rollout.driver.profile import Profile
from fnroll.rollout.flight.budget import Budget
from fnroll.rollout.flight.conversation import Conversations
from fnroll.rollout.flight.flight import Ended, Flight
from fnroll.rollout.flight.launch import end_without_room, is_open, land, make_flights
from fnroll.rollout.flight.resume import describe_run
from fnroll.rollout.progress import Report, show_progress
from fnroll.rollout.setup import Setup
from fnroll.rollout.turns import open_turns

OnRecord = Callable[[int, RolloutRecord], None]
Which = Callable[[RolloutRecord], bool]


class RolloutInterrupted(KeyboardInterrupt):
    """Ctrl-C during a rollout; `batch` holds the records that had ended."""

    def __init__(self, batch: RolloutBatch, total: int) -> None:
        super().__init__(f"rollout interrupted: {len(batch)} of {total} records had ended, see .batch")
        self.batch = batch


@dataclass(kw_only=True, eq=False)
class Call:
    """A request on its way to a batch."""

    setup: Setup
    steps: LoweredSteps
    buffers: Buffers
    records: Sequence[RolloutRecord]
    sampling: SamplingConfig
    seed: int
    step: int
    version: int
    """Of the weights."""
    changed: tuple[str, ...] = ()
    """What may differ from the run that a record was begun in."""
    max_steps: int | None = None
    on_record: OnRecord | None = None
    aborts: deque[Which] = field(default_factory=deque)
    """Which records to end; may be added to from any thread."""
    profile: Profile = field(default_factory=Profile)
    done: dict[int, RolloutRecord] = field(default_factory=dict)
    """Records that have ended, by place in the batch."""
    cut: dict[int, RolloutRecord] = field(default_factory=dict)
    """Records that were cut."""

    def ended(self) -> RolloutBatch:
        """Return the records that have ended, in the order of the request."""
        return RolloutBatch(tuple(self.done[index] for index in sorted(self.done)))

    def batch(self) -> RolloutBatch:
        """Return all records, in the order of the request."""
        found = {**self.cut, **self.done}
        return RolloutBatch(tuple(found[index] for index in sorted(found)))

    def run(self) -> None:
        """Roll out what has to be, into `done`; what has ended is in there also if this raises.

        Raises:
          RolloutInterrupted: on Ctrl-C.
        """
        start = time.perf_counter()
        try:
            with torch.no_grad(), ExitStack() as stack:
                self.steps.refresh()
                self._run(stack)
        except KeyboardInterrupt as interrupt:
            raise RolloutInterrupted(self.ended(), len(self.records)) from interrupt
        finally:
            self.profile.wall_s = time.perf_counter() - start

    def _run(self, stack: ExitStack) -> None:
        setup, budget = self.setup, Budget(self.setup.config, self.sampling)
        self._warn_of_weights()
        run = describe_run(self.seed, self.step, self.sampling, setup.config, setup.model, self.version)
        for record in self.records:
            if record.is_unfinished:
                check_run(record.label, record.run or {}, run, self.changed)
        with self.profile.stage("render"):
            flights = make_flights(self.records, setup.prompts, budget, self.seed, self.step, setup.stop_ids)
        saver = self._open_saver(run)
        report = stack.enter_context(show_progress(len(self.records), setup.config.progress))
        flying = self._keep_the_ready(flights)
        if not flying:
            saver.save(self.done, dict, steps=0)
            return
        turns, flying = open_turns(stack, setup, flying, budget, seed=self.seed, step=self.step)
        driver = self._open_driver(flying, turns)
        self._fly(driver, saver, report, run)
        starts = [flight.start_ids for flight in flying if flight.index in self.done]
        self.profile.least_tokens += count_distinct(starts)

    def _warn_of_weights(self) -> None:
        if names := self.setup.weights.find_not_finite():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            warnings.warn(
                f"weights of {self.setup.model.name} are not finite: {names[0]}{more}; records they reach "
                f"end FAILED with reason {Reason.NOT_FINITE}",
                stacklevel=5,
            )

    def _keep_the_ready(self, flights: Sequence[Flight]) -> list[Flight]:
        """Keep the records for which there is nothing to do; return the others."""
        for index, record in enumerate(self.records):
            if not is_open(record):
                self._keep(index, record)
        for flight in flights:
            if (ended := end_without_room(flight)) is not None:
                self._keep(flight.index, self._land(ended))
        return [flight for flight in flights if flight.index not in self.done]

    def _fly(self, driver: Driver, saver: Saver, report: Report, run: Mapping[str, Any]) -> None:
        def stand() -> dict[int, RolloutRecord]:
            items = [*driver.unfinished(), *driver.ended]
            return {item.flight.index: self._land(item, run) for item in items}

        def save() -> None:
            with self.profile.stage("save"):
                saver.save(self.done, stand, self.profile.steps)

        driver.on_poll = lambda: report(len(self.done), self.profile.tokens)
        driver.is_save_due, driver.on_save = saver.is_due, save
        saver.save(self.done, stand, steps=0)
        try:
            for ended in driver.run(self.max_steps):
                self._keep(ended.flight.index, self._land(ended))
            saver.save(self.done, stand, self.profile.steps)
        except BaseException:
            for ended in driver.salvage():
                with suppress(Exception):  # one that cannot be made a record must not cost the others
                    self.done[ended.flight.index] = self._land(ended)
            with suppress(OSError):  # what stopped the rollout is what the caller has to hear of
                saver.save(self.done, None, self.profile.steps)
            raise
        self.cut = stand()
        self.buffers.keep(driver.state, driver.leave() if self.setup.config.reuse_cache else None)

    def _keep(self, index: int, record: RolloutRecord) -> None:
        self.done[index] = record
        if self.on_record is not None:
            with self.profile.stage("record"):
                self.on_record(index, record)

    def _land(self, ended: Ended, run: Mapping[str, Any] | None = None) -> RolloutRecord:
        return land(ended, self.setup.decode, with_log_probs=self.setup.config.return_log_probs, run=run)

    def _open_saver(self, run: Mapping[str, Any]) -> Saver:
        path = self.setup.config.save
        if path is not None:
            path = at_step(path, self.step)
            check_overwrite(path, self.records)
        return Saver(path, self.setup.config.save_every, run)

    def _open_driver(self, flights: Sequence[Flight], turns: Conversations | None) -> Driver:
        config, sampling = self.setup.config, self.sampling
        keep_support = sampling.is_truncating or any(f.record.support is not None for f in flights)
        support, lines = sampling.support_size if keep_support else 0, self.steps.num_lines(len(flights))
        self.profile.pool_bytes = self.buffers.pool_bytes
        driver = Driver(
            self.buffers.init_state(lines, self.setup.stop_ids, sampling, support, self.version),
            self.steps,
            static=config.batching == "static",
            poll_every=config.poll_every,
            profile=self.profile,
            turns=turns,
            share_prefixes=config.share_prefixes,
            held=self.buffers.take_held(),
        )
        driver.add(flights)
        driver.aborts = self.aborts
        return driver
