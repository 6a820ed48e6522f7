"""A workload as data: what is to be rolled out, the same for every engine."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from fnroll.rollout.cache.prefixes import count_distinct

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Page:
    """What the tool answers."""

    text: str
    ids: Ids
    """What the record grows by: the answer between the turns, as the chat template writes it."""


@dataclass(frozen=True)
class Workload:
    """Prompts and how they are rolled out; greedy, unless a temperature is given."""

    name: str
    """`W1` to `W6`."""
    prompts: tuple[Ids, ...]
    rows: int
    """B: records that decode at the same time."""
    max_new_tokens: int
    """Of a turn."""
    variant: str = ""
    """What tells workloads of one name apart."""
    n: int = 1
    """Samples of each prompt."""
    has_stops: bool = False
    """Whether the model's own stop ids end an answer; else each turn takes all its tokens."""
    temperature: float = 0.0
    poll_every: int = 1
    """Decode steps between two reads of the device, of engines that can run ahead."""
    turns: int = 1
    latency_s: float = 0.0
    """What a tool call takes."""
    messages: tuple[tuple[dict[str, str], ...], ...] = ()
    """The prompts as conversations; only where there are several turns."""
    pages: tuple[Page, ...] = ()
    """What the tool may answer."""

    @property
    def expanded(self) -> list[Ids]:
        """The prompt of each record: every prompt `n` times, in order."""
        return [prompt for prompt in self.prompts for _ in range(self.n)]

    @property
    def max_length(self) -> int:
        """T: room for the longest record."""
        page = max((len(page.ids) for page in self.pages), default=0)
        return max(map(len, self.prompts)) + self.turns * self.max_new_tokens + (self.turns - 1) * page + 1

    def page(self, turn: str) -> Page:
        """Return what the tool answers to the text of a turn: a function of the text and of nothing else."""
        return self.pages[zlib.crc32(turn.encode("utf-8", "replace")) % len(self.pages)]


def least_fed(work: Workload, records: Sequence[Ids]) -> int:
    """Return the fewest tokens that any engine must feed to sample these records of a workload.

    A beginning that prompts share is fed once; what follows a prompt is each record's own, also where greedy
    samples happen to be equal; the last token of a record is never fed.
    """
    grown = sum(len(record) - 1 - len(prompt) for record, prompt in zip(records, work.expanded, strict=True))
    return count_distinct(work.prompts) + grown
