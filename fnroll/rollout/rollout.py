"""The host API: a model, a tokenizer and a configuration, that turn requests into batches."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence
from typing import Any

from torch import nn

from fnroll.checks import check_int
from fnroll.compile.steps import LoweredSteps
from fnroll.compile.warmup import WarmUp, warm_up
from fnroll.config import RolloutConfig, SamplingConfig
from fnroll.dialogue.tool import ToolSet
from fnroll.models.base import Model
from fnroll.records.batch import RolloutBatch, RolloutRequest
from fnroll.rollout.buffers import Buffers
from fnroll.rollout.call import Call, OnRecord, Which
from fnroll.rollout.driver.profile import Profile
from fnroll.rollout.progress import show_steps
from fnroll.rollout.setup import lower_steps, make_setup


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
        self._setup = make_setup(model, tokenizer, config, tools)
        self._buffers = Buffers(self.model, config, multi_turn=self._setup.multi_turn)
        self._aborts: deque[Which] = deque()
        self._is_running, self.weight_version = False, 0
        self.profile = Profile()
        self.finished = RolloutBatch(())
        """The records that ended in the last `generate` call, also if it raised."""

    @property
    def model(self) -> Model:
        """The model, as a pure function."""
        return self._setup.model

    @property
    def config(self) -> RolloutConfig:
        """How the rollout is run."""
        return self._setup.config

    @property
    def tokenizer(self) -> Any:
        """Of the model; None if all prompts are ids."""
        return self._setup.tokenizer

    @property
    def stop_ids(self) -> Sequence[int]:
        """Ids that end a turn."""
        return self._setup.stop_ids

    @functools.cached_property
    def _steps(self) -> LoweredSteps:
        return lower_steps(self._setup)

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
        sampling = sampling or SamplingConfig()
        self._steps.refresh()
        self._buffers.take_held()
        support, lines = sampling.support_size if sampling.is_truncating else 0, self._steps.num_lines(0)
        state = self._buffers.init_state(lines, self.stop_ids, sampling, support, self.weight_version)
        with show_steps("warm-up", len(self._steps.shapes()), self.config.progress) as report:
            state, done = warm_up(self._steps, state, report)
        self._buffers.keep(state, None)
        return done

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

        A record's tokens and log-probs are a function of the weights, its prompt, the sampling configuration
        and `(seed, step, prompt_id, sample)`, of nothing else, but for `reuse_cache` under newer weights.

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
        check_int("generate", "max_steps", max_steps, least=1, optional=True)
        self._aborts.clear()
        self.profile, self.finished = Profile(), RolloutBatch(())
        call = Call(
            setup=self._setup,
            steps=self._steps,
            buffers=self._buffers,
            records=request.expand(),
            sampling=sampling or SamplingConfig(),
            seed=seed,
            step=step,
            version=self.weight_version,
            changed=request.changed,
            max_steps=max_steps,
            on_record=on_record,
            aborts=self._aborts,
            profile=self.profile,
        )
        self._is_running = True
        try:
            call.run()
        finally:
            self._is_running, self.finished = False, call.ended()
        return call.batch()

    def abort(self, which: Which | None = None) -> None:
        """End records of the running `generate` call as they stand, `TRUNCATED` with reason `aborted`.

        It takes effect before the next decode step. May be called from `on_record` and from any thread; what
        has ended is kept as it is. Without a running call it does nothing.

        Args:
          which: says of a record as it was requested whether to end it; None ends all.
        """
        self._aborts.append((lambda record: True) if which is None else which)

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
        self._buffers.renew()

    def shutdown(self) -> None:
        """Release the cache and the lowered steps. The rollout can be used again."""
        self._buffers.release()
        if (steps := self.__dict__.pop("_steps", None)) is not None:
            steps.shutdown()

    def __enter__(self) -> Rollout:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
