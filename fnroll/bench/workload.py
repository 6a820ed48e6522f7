"""A workload as data: what is to be rolled out, the same for every engine."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Page:
    """What the tool answers."""

    text: str
    ids: Ids
    """What the record grows by: the answer between the turns, as the chat template writes it."""


def common_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many ids two sequences begin with together."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(left), len(right)))


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


def least_fed(records: Sequence[Ids]) -> int:
    """Return the fewest tokens that any engine must feed to sample these records.

    That is the number of distinct beginnings among them: a shared prompt is fed once, and the last token of
    a record never.
    """
    records = sorted(record[:-1] for record in records)
    shared = sum(common_length(*pair) for pair in itertools.pairwise(records))
    return sum(map(len, records)) - shared
