"""The host API: a model, a tokenizer and a configuration, that turn requests into batches."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from typing import Any

import torch
from torch import Tensor, nn

from fnroll.core.rng import init_keys
from fnroll.core.tree import replace
from fnroll.core.types import Cache, RolloutState, init_state
from fnroll.dialogue.chat import Chat, Segment, init_chat
from fnroll.dialogue.parsers import Parser, detect_parser, get_parser
from fnroll.dialogue.tool import ToolSet
from fnroll.models.base import Model
from fnroll.models.causal_lm import causal_lm
from fnroll.shell.batch import RolloutBatch, RolloutRequest, hash_prompt_id
from fnroll.shell.budget import Budget
from fnroll.shell.checks import check_int
from fnroll.shell.config import RolloutConfig, SamplingConfig
from fnroll.shell.conversation import Conversations
from fnroll.shell.driver import Driver, Ended, Flight, Tape
from fnroll.shell.log import EffectLog
from fnroll.shell.lowered import LoweredSteps
from fnroll.shell.profile import Profile
from fnroll.shell.progress import show_progress
from fnroll.shell.prompt import Prompts
from fnroll.shell.record import Reason, RolloutRecord, Status
from fnroll.shell.replay import ReplayRunner
from fnroll.shell.result import Runner
from fnroll.shell.runner import ToolRunner
from fnroll.shell.sampler import sampling_params

OnRecord = Callable[[int, RolloutRecord], None]
_MIN_LINES = 256
_DEFAULT_PARSER = "hermes"


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
        self._check()
        self.multi_turn = bool(len(self.tools)) if config.multi_turn is None else config.multi_turn
        self._chat = self._init_chat()
        self._prompts = Prompts(tokenizer, self._chat, self.model.vocab_size)
        self.profile = Profile()
        self.finished = RolloutBatch(())
        """The records that ended in the last `generate` call, also if it raised."""
        self.weight_version = 0
        self._buffers: tuple[tuple[Tensor, ...], tuple[Tensor, ...]] | None = None

    def _check(self) -> None:
        limit = self.model.max_positions
        if limit is not None and self.config.max_length > limit:
            raise ValueError(
                f"RolloutConfig.max_length is {self.config.max_length}; {self.model.name} has positions for "
                f"at most {limit} tokens"
            )
        tokenizer = self.tokenizer
        if tokenizer is not None and tokenizer.eos_token_id is None and tokenizer.pad_token_id is None:
            raise ValueError(
                "the tokenizer has neither an EOS nor a pad token, so nothing says where a turn ends; set "
                "tokenizer.eos_token"
            )
        self.stop_ids = sorted({*self.model.stop_ids, *self._tokenizer_stop_ids()})
        if not self.stop_ids:
            raise ValueError(
                f"no stop id: neither the tokenizer nor the generation config of {self.model.name} has an "
                f"EOS token; set tokenizer.eos_token or model.generation_config.eos_token_id"
            )

    def _tokenizer_stop_ids(self) -> list[int]:
        eos = getattr(self.tokenizer, "eos_token_id", None)
        return [] if eos is None else [int(eos)]

    def _init_chat(self) -> Chat | None:
        if self.multi_turn and not getattr(self.tokenizer, "chat_template", None):
            raise ValueError(
                "multi-turn rollouts need a tokenizer with a chat template, which writes what comes between "
                "turns"
            )
        if self.tokenizer is None or not getattr(self.tokenizer, "chat_template", None):
            return None
        chat = init_chat(
            self.tokenizer,
            self.tools.schemas,
            stop_ids=self.stop_ids,
            chat_template_kwargs=self.config.chat_template_kwargs,
            allow_control_tokens=self.config.allow_control_tokens,
            multi_turn=self.multi_turn,
        )
        if self.multi_turn and "tool" in chat.rewrites_after:
            warnings.warn(
                "the chat template rewrites a turn once a tool message follows it; records keep what was "
                "sampled, so their text differs from the template's (record.is_exact is False)",
                stacklevel=3,
            )
        return chat

    @functools.cached_property
    def _steps(self) -> LoweredSteps:
        return LoweredSteps(
            self.model,
            backend=self.config.backend,
            max_length=self.config.max_length,
            static=self.config.batching == "static",
            multi_turn=self.multi_turn,
        )

    def _init_state(self, num_records: int, sampling: SamplingConfig) -> RolloutState:
        if self._buffers is None:
            cache = self.model.init_cache(self.config.rows, self.config.max_length)
        else:
            # What is left in them is never read: a slot is written before anything may attend to it.
            cache = Cache(keys=self._buffers[0], values=self._buffers[1])
        self._buffers = None
        state = init_state(
            cache,
            num_records=num_records,
            stop_ids=torch.tensor(self.stop_ids),
            version=self.weight_version,
            support_size=self.config.support_size if sampling.is_truncating else 0,
        )
        return replace(state, sampling=sampling_params(self.model, sampling, state.sampling))

    def generate(
        self,
        request: RolloutRequest,
        sampling: SamplingConfig | None = None,
        *,
        seed: int = 0,
        step: int = 0,
        on_record: OnRecord | None = None,
    ) -> RolloutBatch:
        """Roll out a request.

        A record's tokens and log-probs are a function of the weights, its prompt, the sampling
        configuration, `(seed, step, prompt_id, sample)`, and of nothing else.

        Args:
          request: prompts, and how many samples of each.
          sampling: how tokens are drawn; the default samples from the model's own distribution.
          seed: of the run.
          step: of the training loop; another step draws other noise.
          on_record: called with `(place in the batch, record)` as soon as a record has ended.

        Raises:
          ValueError: naming the record, if a prompt is empty or holds ids outside the vocabulary.
          RolloutInterrupted: on Ctrl-C, with the records that had ended.
        """
        check_int("generate", "seed", seed, least=0)
        check_int("generate", "step", step, least=0)
        sampling = SamplingConfig() if sampling is None else sampling
        records = request.expand()
        done: dict[int, RolloutRecord] = {}
        self.profile, self.finished = Profile(), RolloutBatch(())

        def keep(index: int, record: RolloutRecord) -> None:
            done[index] = record
            if on_record is not None:
                on_record(index, record)

        start = time.perf_counter()
        try:
            with (
                torch.no_grad(),
                show_progress(len(records), self.config.progress) as report,
                closing(self._run(records, sampling, seed, step, keep)) as ended_records,
            ):
                for ended in ended_records:
                    keep(ended.flight.index, self._to_record(ended))
                    report(len(done), self.profile.tokens)
        except KeyboardInterrupt as interrupt:
            batch = RolloutBatch(tuple(done[index] for index in sorted(done)))
            raise RolloutInterrupted(batch, len(records)) from interrupt
        finally:
            self.profile.wall_s = time.perf_counter() - start
            self.finished = RolloutBatch(tuple(done[index] for index in sorted(done)))
        return self.finished

    def _run(
        self, records: Sequence[RolloutRecord], sampling: SamplingConfig, seed: int, step: int, keep: OnRecord
    ) -> Generator[Ended, None, None]:
        """Drive what has to be rolled out; hand what has not to `keep` at once."""
        self.model.refresh()
        with self.profile.stage("render"):
            flights = self._make_flights(records, sampling, seed, step, keep)
        if not flights:
            return
        lines = max(_MIN_LINES, 8 * self.config.rows)
        if self.config.backend == "eager":  # else a request of another size would be another graph
            lines = min(len(flights), lines)
        with ExitStack() as stack:
            driver = Driver(
                self._init_state(lines, sampling),
                self._steps,
                static=self.config.batching == "static",
                poll_every=self.config.poll_every,
                profile=self.profile,
                turns=self._open_conversations(stack, flights, sampling, step),
            )
            yield from driver.run(flight for flight, _ in flights)
        self._buffers = (driver.state.cache.keys, driver.state.cache.values)

    def _open_conversations(
        self,
        stack: ExitStack,
        flights: Sequence[tuple[Flight, Segment | None]],
        sampling: SamplingConfig,
        step: int,
    ) -> Conversations | None:
        """Start tools and log for one call, to be closed with `stack`; None in single-turn rollouts."""
        if not self.multi_turn or self._chat is None:
            return None
        config = self.config
        runner: Runner = self._open_runner(step)
        stack.callback(runner.close)
        log = None
        if config.log is not None:
            log = stack.enter_context(EffectLog.open(config.log.replace("{step}", str(step))))
        conversations = Conversations(
            self._chat,
            self._parser(),
            self.tools.schemas,
            runner,
            Budget(config, sampling),
            log,
        )
        for flight, segment in flights:
            conversations.start(flight, segment)
        return conversations

    def _open_runner(self, step: int) -> Runner:
        if self.config.replay is not None:
            return ReplayRunner(self.config.replay.replace("{step}", str(step)))
        return ToolRunner(
            self.tools,
            max_concurrent_tools=self.config.max_concurrent_tools,
            tool_timeout_s=self.config.tool_timeout_s,
        )

    def _parser(self) -> Parser:
        name = self.config.tool_call_parser
        if name == "auto":
            template = self.tokenizer.get_chat_template(tools=self.tools.schemas or None)
            name = detect_parser(str(template)) or _DEFAULT_PARSER
        return get_parser(name)

    def _make_flights(
        self, records: Sequence[RolloutRecord], sampling: SamplingConfig, seed: int, step: int, keep: OnRecord
    ) -> list[tuple[Flight, Segment | None]]:
        fresh = [(index, record) for index, record in enumerate(records) if not record.is_rolled_out]
        for index, record in enumerate(records):
            if record.is_rolled_out:
                keep(index, record)
        if not fresh:
            return []
        prompt_ids = torch.tensor([hash_prompt_id(_identity(record)) for _, record in fresh])
        samples = torch.tensor([record.sample or 0 for _, record in fresh])
        keys = init_keys(seed, step, prompt_ids, samples)
        budget, flights = Budget(self.config, sampling), []
        encoded: dict[int, tuple[list[int], Segment | None]] = {}
        for (index, record), key in zip(fresh, keys, strict=True):
            # The samples of a prompt share its messages or ids, and so what they are encoded to.
            source = id(record.messages if record.prompt_ids is None else record.prompt_ids)
            if source not in encoded:
                encoded[source] = self._prompts.encode(record)
            prompt, segment = encoded[source]
            limit, reason = budget.limit(len(prompt), 0)
            flight = Flight(index, record, prompt, key, limit, reason)
            if limit > len(prompt):
                flights.append((flight, segment))
            else:
                keep(index, self._no_room(flight))
        return flights

    def _no_room(self, flight: Flight) -> RolloutRecord:
        """Return the record of a prompt that leaves no room for a token: untouched but for its status."""
        count = len(flight.prompt_ids)
        return flight.record.replace(
            tokens=tuple(flight.prompt_ids),
            prompt_length=count,
            loss_mask=(False,) * count,
            log_probs=(0.0,) * count if self.config.return_log_probs else None,
            weight_versions=(-1,) * count,
            status=Status.TRUNCATED,
            reason=Reason.PROMPT,
            response=None if self.tokenizer is None else "",
        )

    def _to_record(self, ended: Ended) -> RolloutRecord:
        flight, tape = ended.flight, ended.tape
        count = len(flight.prompt_ids)
        return flight.record.replace(
            tokens=tuple(tape.tokens),
            prompt_length=count,
            loss_mask=tuple(tape.loss_mask),
            log_probs=tuple(tape.log_probs) if self.config.return_log_probs else None,
            weight_versions=tuple(tape.weight_versions),
            support=_support(tape),
            status=ended.status,
            reason=ended.reason,
            num_turns=flight.num_turns,
            tool_calls=tuple(flight.tool_calls),
            is_exact=flight.is_exact,
            num_tool_outputs_truncated=flight.num_cut,
            response=None if self.tokenizer is None else self.tokenizer.decode(tape.tokens[count:]),
        )

    def sync_weights(self, version: int) -> None:
        """Take up the model's present weights and say which version they are.

        In-place updates need no call to be seen; the version is what `weight_versions` will say.
        """
        check_int("sync_weights", "version", version, least=0)
        self.model.refresh()
        self.weight_version = version

    def shutdown(self) -> None:
        """Release the cache and the lowered steps. The rollout can be used again."""
        self._buffers = None
        self.__dict__.pop("_steps", None)

    def __enter__(self) -> Rollout:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def _support(tape: Tape) -> tuple[tuple[int, ...], ...] | None:
    if tape.support is None:
        return None
    return tuple(tuple(token for token in ids if token >= 0) for ids in tape.support)


def _identity(record: RolloutRecord) -> int | str:
    return 0 if record.prompt_id is None else record.prompt_id
