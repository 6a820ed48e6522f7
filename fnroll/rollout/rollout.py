"""The host API: a model, a tokenizer and a configuration, that turn requests into batches."""

from __future__ import annotations

import functools
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import nn

from fnroll.checks import check_int
from fnroll.compile.steps import LoweredSteps
from fnroll.compile.warmup import WarmUp, warm_up
from fnroll.config import RolloutConfig, SamplingConfig
from fnroll.core.pool import forget, init_pool
from fnroll.core.tree import replace, tree_leaves
from fnroll.core.types import Cache, Pool, RolloutState, init_state
from fnroll.dialogue.chat import Segment
from fnroll.dialogue.tool import ToolSet
from fnroll.models.base import Model
from fnroll.models.causal_lm import causal_lm
from fnroll.paths import at_step
from fnroll.records.batch import RolloutBatch, RolloutRequest
from fnroll.records.files.saver import Saver, check_overwrite
from fnroll.records.record import RolloutRecord
from fnroll.records.run import check_run
from fnroll.rollout.cache.prefixes import Prefixes, count_distinct
from fnroll.rollout.cache.size import count_slots, slot_bytes
from fnroll.rollout.call import Call, OnRecord
from fnroll.rollout.driver.driver import Driver
from fnroll.rollout.driver.profile import Profile
from fnroll.rollout.flight.budget import Budget
from fnroll.rollout.flight.conversation import Conversations
from fnroll.rollout.flight.flight import Ended, Flight
from fnroll.rollout.flight.launch import end_without_room, is_open, land, make_flights
from fnroll.rollout.flight.prompts import Prompts
from fnroll.rollout.flight.resume import check_single_turn, describe_run
from fnroll.rollout.progress import Report, show_progress, show_steps
from fnroll.rollout.sampler import sampling_params
from fnroll.rollout.setup import check_length, find_parser, find_stop_ids, open_chat
from fnroll.tools.log import EffectLog, read_log
from fnroll.tools.replay import ReplayRunner
from fnroll.tools.result import Runner
from fnroll.tools.runner import ToolRunner


class RolloutInterrupted(KeyboardInterrupt):
    """Ctrl-C during a rollout; `batch` holds the records that had ended."""

    def __init__(self, batch: RolloutBatch, total: int) -> None:
        super().__init__(f"rollout interrupted: {len(batch)} of {total} records had ended, see .batch")
        self.batch = batch


class Rollout:
    """Rolls out prompts with one model. Also a context manager.

    Args:
      model: a Hugging Face causal language model, which is left as it is, or a `fnroll.models.Model`.
      tokenizer: of the model; None if all prompts are ids.
      config: how the rollout is run.
      tools: what the model may call: functions, objects with `__call__`, `fnroll.Tool`s, or a `ToolSet`.

    Raises:
      ValueError: if model, tokenizer, tools and configuration do not fit together; the message says how.
    """

    def __init__(
        self,
        model: nn.Module | Model,
        tokenizer: Any,
        config: RolloutConfig,
        tools: ToolSet | Sequence[Any] = (),
    ) -> None:
        self.model: Model = model if isinstance(model, Model) else causal_lm(model)
        self.tokenizer, self.config = tokenizer, config
        self.tools = tools if isinstance(tools, ToolSet) else ToolSet(tools)
        check_length(self.model, config)
        self.stop_ids = find_stop_ids(self.model, tokenizer)
        self.multi_turn = bool(len(self.tools)) if config.multi_turn is None else config.multi_turn
        self._chat = open_chat(tokenizer, self.tools, self.stop_ids, config, multi_turn=self.multi_turn)
        self._parser = find_parser(tokenizer, self.tools, config) if self.multi_turn else None
        self._prompts = Prompts(tokenizer, self._chat, self.model.vocab_size)
        self.profile = Profile()
        self.finished = RolloutBatch(())
        """The records that ended in the last `generate` call, also if it raised."""
        self.weight_version = 0
        self._is_running = False
        self._aborts: deque[Callable[[RolloutRecord], bool]] = deque()
        sizes = {"rows": config.rows, "max_length": config.max_length}
        self._slots = count_slots(config.pool, self.model, **sizes, multi_turn=self.multi_turn)
        self._buffers: tuple[Cache, Pool | None] | None = None
        self._held: Prefixes | None = None

    @functools.cached_property
    def _steps(self) -> LoweredSteps:
        return LoweredSteps(
            self.model,
            backend=self.config.backend,
            max_length=self.config.max_length,
            num_rows=self.config.rows,
            static=self.config.batching == "static",
            multi_turn=self.multi_turn,
            front=self.config.returning == "front",
        )

    def warm_up(self, sampling: SamplingConfig | None = None) -> WarmUp:
        """Compile every step that rollouts of this configuration can need; in eager mode, none.

        Afterwards no rollout compiles anything, whatever its schedule, under sampling configurations that
        leave out the same steps (noise, top-k up to the next power of two, top-p, penalty, support) as
        `sampling`.

        Args:
          sampling: how tokens will be drawn; the default samples from the model's own distribution.

        Returns:
          How many graphs were compiled, and in how many seconds.

        Raises:
          WarmUpError: if the memory is too small, naming the graph and what to lower.
        """
        sampling = SamplingConfig() if sampling is None else sampling
        self._steps.refresh()
        support = sampling.support_size if sampling.is_truncating else 0
        self._held = None
        state = self._init_state(self._steps.num_lines(0), sampling, support)
        with show_steps("warm-up", len(self._steps.shapes()), self.config.progress) as report:
            state, done = warm_up(self._steps, state, report)
        self._buffers = (state.cache, state.pool)
        return done

    def _init_state(self, num_records: int, sampling: SamplingConfig, support_size: int) -> RolloutState:
        if self._buffers is None:
            cache = self.model.init_cache(self.config.rows, self.config.max_length)
            self._buffers = (cache, init_pool(cache, self._slots))
        # What is left in them is read only where `_held` says what it is.
        cache, pool = self._buffers
        self._buffers = None
        self.profile.pool_bytes = self._slots * slot_bytes(self.model, self.config.max_length)
        state = init_state(
            cache,
            num_records=num_records,
            stop_ids=torch.tensor(self.stop_ids),
            version=self.weight_version,
            support_size=support_size,
            pool=pool,
        )
        return replace(forget(state), sampling=sampling_params(self.model, sampling, state.sampling))

    def generate(
        self,
        request: RolloutRequest,
        sampling: SamplingConfig | None = None,
        *,
        seed: int = 0,
        step: int = 0,
        on_record: OnRecord | None = None,
        max_steps: int | None = None,
    ) -> RolloutBatch:
        """Roll out a request.

        A record's tokens and log-probs are a function of the weights, its prompt, the sampling
        configuration, `(seed, step, prompt_id, sample)`, and of nothing else, but for `reuse_cache` under
        newer weights.

        Args:
          request: prompts, and how many samples of each.
          sampling: how tokens are drawn; the default samples from the model's own distribution.
          seed: of the run.
          step: of the training loop; another step draws other noise.
          on_record: called with `(place in the batch, record)` as soon as a record has ended.
          max_steps: decode steps after which all records come back, ended or not; a later call goes on with
            those that are `is_unfinished`: `generate(RolloutRequest(batch.records, resume=True), ...)`.

        Raises:
          ValueError: naming the record, if a prompt is empty or holds ids outside the vocabulary, or if an
            unfinished record was begun in another run than this one.
          RolloutInterrupted: on Ctrl-C, with the records that had ended.
        """
        check_int("generate", "seed", seed, least=0, below=2**64)
        check_int("generate", "step", step, least=0, below=2**32)
        sampling = SamplingConfig() if sampling is None else sampling
        check_int("generate", "max_steps", max_steps, least=1, optional=True)
        call = Call(request.expand(), sampling, (seed, step), request.changed, max_steps, on_record)
        self.profile, self.finished = Profile(), RolloutBatch(())
        self._aborts.clear()
        start = time.perf_counter()
        self._is_running = True
        try:
            with torch.no_grad(), ExitStack() as stack:
                self._run(stack, call)
        except KeyboardInterrupt as interrupt:
            raise RolloutInterrupted(call.ended(), len(call.records)) from interrupt
        finally:
            self._is_running = False
            self.profile.wall_s = time.perf_counter() - start
            self.finished = call.ended()
        return call.batch()

    def _run(self, stack: ExitStack, call: Call) -> None:
        """Roll out what has to be, into `call.done`; what has ended is in there also if this raises."""
        self._steps.refresh()
        budget = Budget(self.config, call.sampling)
        run = describe_run(*call.identity, call.sampling, self.config, self.model)
        for record in call.records:
            if record.is_unfinished:
                check_run(record.label, record.run or {}, run, call.changed)
        with self.profile.stage("render"):
            flights = make_flights(call.records, self._prompts, budget, *call.identity, self.stop_ids)
        saver = self._open_saver(call, run)
        report = stack.enter_context(show_progress(len(call.records), self.config.progress))
        for index, record in enumerate(call.records):
            if not is_open(record):
                self._keep(call, index, record)
        for flight, _ in flights:
            if (ended := end_without_room(flight)) is not None:
                self._keep(call, flight.index, self._to_record(ended))
        flying = [(flight, segment) for flight, segment in flights if flight.index not in call.done]
        if not flying:
            saver.save(call.done, dict, steps=0)
            return
        driver = self._open_driver(stack, flying, call.sampling, budget, call.identity)
        driver.add(flight for flight, _ in flying)
        driver.aborts = self._aborts
        self._fly(call, driver, saver, report, run)
        starts = [flight.start_ids for flight, _ in flying if flight.index in call.done]
        self.profile.least_tokens += count_distinct(starts)

    def _fly(self, call: Call, driver: Driver, saver: Saver, report: Report, run: Mapping[str, Any]) -> None:
        def stand() -> dict[int, RolloutRecord]:
            items = [*driver.unfinished(), *driver.ended]
            return {item.flight.index: self._to_record(item, run) for item in items}

        def on_poll() -> None:
            report(len(call.done), self.profile.tokens)
            if saver.is_due(self.profile.steps):
                with self.profile.stage("save"):
                    saver.save(call.done, stand, self.profile.steps)

        driver.on_poll = on_poll
        saver.save(call.done, stand, steps=0)
        try:
            for ended in driver.run(call.max_steps):
                self._keep(call, ended.flight.index, self._to_record(ended))
            saver.save(call.done, stand, self.profile.steps)
        except BaseException:
            for ended in driver.salvage():
                with suppress(Exception):  # one that cannot be made a record must not cost the others
                    call.done[ended.flight.index] = self._to_record(ended)
            with suppress(OSError):  # what stopped the rollout is what the caller has to hear of
                saver.save(call.done, None, self.profile.steps)
            raise
        call.cut = stand()
        self._buffers = (driver.state.cache, driver.state.pool)
        self._held = driver.leave() if self.config.reuse_cache else None

    def _keep(self, call: Call, index: int, record: RolloutRecord) -> None:
        call.done[index] = record
        if call.on_record is not None:
            with self.profile.stage("record"):
                call.on_record(index, record)

    def _open_saver(self, call: Call, run: Mapping[str, Any]) -> Saver:
        path = self.config.save
        if path is not None:
            path = at_step(path, call.identity[1])
            check_overwrite(path, call.records)
        return Saver(path, self.config.save_every, run)

    def abort(self, which: Callable[[RolloutRecord], bool] | None = None) -> None:
        """End records of the running `generate` call as they stand, `TRUNCATED` with reason `aborted`.

        It takes effect before the next decode step. May be called from `on_record` and from any thread; what
        has ended is kept as it is. Without a running call it does nothing.

        Args:
          which: says of a record as it was requested whether to end it; None ends all.
        """
        self._aborts.append((lambda record: True) if which is None else which)

    def _to_record(self, ended: Ended, run: Mapping[str, Any] | None = None) -> RolloutRecord:
        decode = None if self.tokenizer is None else self.tokenizer.decode
        return land(ended, decode, with_log_probs=self.config.return_log_probs, run=run)

    def _open_driver(
        self,
        stack: ExitStack,
        flights: Sequence[tuple[Flight, Segment | None]],
        sampling: SamplingConfig,
        budget: Budget,
        identity: tuple[int, int],
    ) -> Driver:
        keep_support = sampling.is_truncating or any(f.record.support is not None for f, _ in flights)
        lines = self._steps.num_lines(len(flights))
        held, self._held = self._held, None  # a call that fails leaves nothing
        return Driver(
            self._init_state(lines, sampling, sampling.support_size if keep_support else 0),
            self._steps,
            static=self.config.batching == "static",
            poll_every=self.config.poll_every,
            profile=self.profile,
            turns=self._open_conversations(stack, flights, budget, identity),
            share_prefixes=self.config.share_prefixes,
            held=held,
        )

    def _open_conversations(
        self,
        stack: ExitStack,
        flights: Sequence[tuple[Flight, Segment | None]],
        budget: Budget,
        identity: tuple[int, int],
    ) -> Conversations | None:
        """Start tools and log for one call, to be closed with `stack`; None in single-turn rollouts."""
        if not self.multi_turn or self._chat is None or self._parser is None:
            for flight, _ in flights:
                check_single_turn(flight)
            return None
        log, known = None, None
        if self.config.log is not None:
            path = at_step(self.config.log, identity[1])
            if any(flight.begun for flight, _ in flights) and os.path.exists(path):
                known = read_log(path)
            log = stack.enter_context(EffectLog.open(path))
        runner: Runner = self._open_runner(identity)
        stack.callback(runner.close)
        seed, step = identity
        conversations = Conversations(
            self._chat, self._parser, self.tools.schemas, runner, budget, log, known, seed=seed, step=step
        )
        stack.callback(conversations.log_ready)
        for flight, segment in flights:
            conversations.start(flight, segment)
        return conversations

    def _open_runner(self, identity: tuple[int, int]) -> Runner:
        if self.config.replay is not None:
            return ReplayRunner(at_step(self.config.replay, identity[1]))
        return ToolRunner(
            self.tools,
            max_concurrent_tools=self.config.max_concurrent_tools,
            tool_timeout_s=self.config.tool_timeout_s,
        )

    def sync_weights(self, version: int) -> None:
        """Take up the model's present weights and say which version they are.

        In-place updates need no call to be seen; the version is what `weight_versions` will say.

        Raises:
          RuntimeError: during `generate`.
        """
        check_int("sync_weights", "version", version, least=0)
        if self._is_running:
            raise RuntimeError(
                "sync_weights during generate: its keys and values are those of the old weights; cut it with "
                "max_steps, or abort it, and go on with resume=True"
            )
        self._steps.refresh()
        self.weight_version = version
        layers = [leaf for leaf in tree_leaves(self._buffers) if leaf.is_floating_point()]
        if self.config.reuse_cache and all(leaf.isfinite().all() for leaf in layers):
            return
        # Old keys and values are not read; but a masked slot counts 0 times its value, NaN if that is NaN.
        self._held = None
        for leaf in layers:
            leaf.zero_()

    def shutdown(self) -> None:
        """Release the cache and the lowered steps. The rollout can be used again."""
        self._buffers = self._held = None
        if (steps := self.__dict__.pop("_steps", None)) is not None:
            steps.shutdown()

    def __enter__(self) -> Rollout:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
