"""The workloads W1 to W6, in full size for a real model and shrunk for the embedded one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fnroll.bench.engine import Subject, lookup_tool
from fnroll.bench.prompts import ask, encode, fill, make_conversations, make_pages
from fnroll.bench.workload import Workload
from fnroll.dialogue.chat import Chat, init_chat
from fnroll.dialogue.tool import ToolSet
from fnroll.models.base import Model
from fnroll.models.toy import toy_model

_TOY_VOCABULARY = 64
_STRESS_POLL = 8


@dataclass(frozen=True)
class Size:
    """How large the workloads are."""

    rows: int
    uniform: tuple[int, int]
    """W1: prompts, new tokens."""
    ragged: tuple[int, int]
    """W2: prompts, most new tokens."""
    group: tuple[int, int, int, int]
    """W3: prompts, tokens of a prompt, samples, new tokens."""
    turns: tuple[int, int, int, int]
    """W4: trajectories, turns, new tokens of a turn, tools in the system prompt."""
    pages: tuple[int, ...]
    """W4: tokens of tool outputs, in turns; with the template's frame around them."""
    latencies: tuple[float, ...]
    """W4: seconds."""
    short: tuple[int, int]
    """W5: prompts, new tokens."""
    stress: tuple[tuple[int, ...], int]
    """W6: numbers of records, rows."""


FULL = Size(
    rows=16,
    uniform=(16, 64),
    ragged=(64, 128),
    group=(8, 512, 8, 32),
    turns=(32, 4, 24, 3),
    pages=(2, 3, 4, 5),
    latencies=(0.0, 0.2, 1.0),
    short=(32, 16),
    stress=((64, 256, 1024), 256),
)
QUICK = Size(
    rows=4,
    uniform=(4, 16),
    ragged=(12, 24),
    group=(2, 80, 4, 8),
    turns=(6, 3, 8, 1),
    pages=(5, 7, 9),
    latencies=(0.0, 0.05, 0.2),
    short=(8, 8),
    stress=((32, 64, 128), 32),
)


def uniform(subject: Subject, size: Size) -> list[Workload]:
    """W1: one batch, all prompts of one length, all answers of one length."""
    count, new = size.uniform

    def measure(text: str) -> int:
        return len(encode(subject.tokenizer, text))

    longest = max(map(measure, ask(count)))
    prompts = tuple(encode(subject.tokenizer, fill(text, measure, longest)) for text in ask(count))
    return [Workload("W1", prompts, min(size.rows, count), new)]


def ragged(subject: Subject, size: Size) -> list[Workload]:
    """W2: real questions, answers as long as the model makes them, up to a bound."""
    count, new = size.ragged
    prompts = tuple(encode(subject.tokenizer, text) for text in ask(count))
    return [Workload("W2", prompts, size.rows, new, has_stops=True)]


def group(subject: Subject, size: Size) -> list[Workload]:
    """W3: long prompts, several samples of each."""
    count, length, n, new = size.group

    def measure(text: str) -> int:
        return len(encode(subject.tokenizer, text))

    texts = [fill(text, measure, length) for text in ask(count)]
    return [Workload("W3", tuple(encode(subject.tokenizer, t) for t in texts), size.rows, new, n=n)]


def spoken(subject: Subject, size: Size) -> list[Workload]:
    """W4: turns that end in tool calls, for several latencies of the tool."""
    count, turns, new, tools = size.turns
    chat = _chat(subject)
    said = make_conversations(chat, count, tools, new)
    pages = make_pages(chat, subject.stop_ids[0], [new * many for many in size.pages])
    prompts = tuple(chat.render_prompt(messages).ids for messages in said)
    return [
        Workload(
            "W4", prompts, size.rows, new, variant=f"tools of {latency:g} s", turns=turns, has_stops=True,
            latency_s=latency, messages=tuple(map(tuple, said)), pages=pages,
        )
        for latency in size.latencies
    ]  # fmt: skip


def _chat(subject: Subject) -> Chat:
    """Return the chat that a rollout with the workload's tool has."""
    tool = lookup_tool(Workload("", (), 1, 1))
    return init_chat(subject.tokenizer, ToolSet([tool]).schemas, stop_ids=subject.stop_ids)


def short(subject: Subject, size: Size) -> list[Workload]:
    """W5: so little to do for each prompt that a scheduler costs more than it saves."""
    count, new = size.short
    prompts = tuple(encode(subject.tokenizer, text) for text in ask(count))
    return [Workload("W5", prompts, size.rows, new)]


def stress(subject: Subject, size: Size) -> list[Workload]:
    """W6: many short records of a toy that costs nothing, so that the scheduler is all there is."""
    counts, rows = size.stress
    found = []
    for count in counts:
        ids = [tuple(1 + (7 * i + 3 * j) % 60 for j in range(1 + i % 16)) for i in range(count)]
        work = Workload(
            "W6", tuple(ids), rows, 64, variant=f"{count} records", has_stops=True, temperature=1.0,
            poll_every=_STRESS_POLL,
        )  # fmt: skip
        found.append(work)
    return found


WORKLOADS: dict[str, Callable[[Subject, Size], list[Workload]]] = {
    "W1": uniform, "W2": ragged, "W3": group, "W4": spoken, "W5": short, "W6": stress,
}  # fmt: skip
"""Makers by name."""


def toy() -> Model:
    """Return the toy that measures everything but a model."""
    return toy_model(_TOY_VOCABULARY, sharpness=0.02)


def stress_subject() -> Subject:
    """Return the toy of W6."""
    return Subject(module=None, toy=toy())
