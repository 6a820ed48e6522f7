"""Tasks that a program makes: questions that take one to three tool calls, each building on the last.

Six of eight kinds need two calls or more over two tools, and three need three.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, Protocol
from zlib import crc32

from fnroll.models.tiny.tools import ITEMS, UNITS, price

Split = Literal["train", "held-out"]
_HEADER = "<|im_start|>assistant\n"
_HELD_OUT_SHARE = 8


@dataclass(frozen=True)
class Step:
    """One tool call of a solution; `{0}` in a text argument is the first call's result."""

    name: str
    arguments: Mapping[str, Any]

    def fill(self, results: Sequence[str]) -> dict[str, Any]:
        """Return the arguments with the results of earlier calls in their places."""
        return {
            key: value.format(*results) if isinstance(value, str) else value
            for key, value in self.arguments.items()
        }


@dataclass(frozen=True)
class Task:
    """A question, its answer, and one way to it."""

    kind: str
    question: str
    answer: str
    steps: tuple[Step, ...]

    @property
    def messages(self) -> list[dict[str, str]]:
        """The prompt."""
        return [{"role": "user", "content": self.question}]

    @property
    def metadata(self) -> dict[str, str]:
        """What `reward` needs to know; put it into the record's metadata."""
        return {"kind": self.kind, "answer": self.answer}


class Rolled(Protocol):
    """What `reward` reads of a record."""

    @property
    def status(self) -> Any: ...  # noqa: D102
    @property
    def response(self) -> str | None: ...  # noqa: D102
    @property
    def metadata(self) -> Any: ...  # noqa: D102


def final_answer(response: str) -> str:
    """Return the text of the last turn of a response."""
    return response.rsplit(_HEADER, 1)[-1].removesuffix("<|im_end|>")


def reward(record: Rolled) -> float:
    """Return 1 if a record ended by itself with exactly the right answer, else 0."""
    if record.status != "COMPLETED" or record.response is None:
        return 0.0
    return float(final_answer(record.response) == record.metadata["answer"])


def _price(item: str, shop: int) -> Step:
    return Step("price", {"item": item, "shop": shop})


def _calc(expression: str) -> Step:
    return Step("calc", {"expression": expression})


def _cost(item: str, shop: int) -> int:
    return int(price(item, shop))


def _one(random: Random) -> Task:
    item, shop = random.choice(ITEMS), random.randint(10, 99)
    question = f"Shop {shop}: what does 1 {item} cost?"
    return Task("price", question, str(_cost(item, shop)), (_price(item, shop),))


def _plus(random: Random) -> Task:
    first, second = random.randint(10, 99), random.randint(10, 99)
    question = f"What is {first} plus {second}?"
    return Task("plus", question, str(first + second), (_calc(f"{first} + {second}"),))


def _times(random: Random) -> Task:
    item, shop, count = random.choice(ITEMS), random.randint(10, 99), random.randint(2, 9)
    question = f"Shop {shop}: what do {count} {item}s cost?"
    return Task(
        "times", question, str(count * _cost(item, shop)), (_price(item, shop), _calc(f"{count} * {{0}}"))
    )


def _length(random: Random) -> tuple[int, str, int, Step]:
    value, unit = random.randint(2, 9), random.choice(tuple(UNITS))
    return value, unit, value * UNITS[unit], Step("convert", {"value": value, "unit": unit})


def _longer(random: Random) -> Task:
    value, unit, length, step = _length(random)
    other = max(10, length + random.choice((-1, 1)) * random.randint(1, 60))
    question = f"Is {value} {unit} longer than {other} cm?"
    answer = "yes" if length > other else "no"
    return Task("longer", question, answer, (step, _calc(f"{{0}} > {other}")))


def _joined(random: Random) -> Task:
    value, unit, length, step = _length(random)
    other = random.randint(10, 99)
    question = f"How many cm are {value} {unit} and {other} cm?"
    return Task("joined", question, str(length + other), (step, _calc(f"{{0}} + {other}")))


def _both(random: Random) -> Task:
    (first, second), shop = random.sample(ITEMS, 2), random.randint(10, 99)
    question = f"Shop {shop}: what do 1 {first} and 1 {second} cost?"
    steps = (_price(first, shop), _price(second, shop), _calc("{0} + {1}"))
    return Task("both", question, str(_cost(first, shop) + _cost(second, shop)), steps)


def _dearer(random: Random) -> Task:
    item, (first, second) = random.choice(ITEMS), random.sample(range(10, 100), 2)
    question = f"How much more is 1 {item} in shop {first} than in shop {second}?"
    steps = (_price(item, first), _price(item, second), _calc("{0} - {1}"))
    return Task("dearer", question, str(_cost(item, first) - _cost(item, second)), steps)


def _change(random: Random) -> Task:
    item, shop, count = random.choice(ITEMS), random.randint(10, 99), random.randint(2, 9)
    total = count * _cost(item, shop)
    paid = next(note for note in (100, 200, 500) if note >= total)
    question = f"Shop {shop}: I pay {paid} for {count} {item}s. What is left?"
    steps = (_price(item, shop), _calc(f"{count} * {{0}}"), _calc(f"{paid} - {{1}}"))
    return Task("change", question, str(paid - total), steps)


_KINDS: tuple[Callable[[Random], Task], ...] = (
    _one, _plus, _times, _longer, _joined, _both, _dearer, _change,
)  # fmt: skip


def _split_of(question: str) -> Split:
    return "held-out" if crc32(question.encode()) % _HELD_OUT_SHARE == 0 else "train"


def make_tasks(count: int, *, seed: int = 0, split: Split = "train") -> list[Task]:
    """Return tasks of all kinds in equal shares. No question is in both splits, whatever the seeds.

    Args:
      count: how many.
      seed: of the draw.
      split: `train` or `held-out`; a question's own text says which it belongs to.
    """
    random, tasks = Random(f"{split} {seed}"), list[Task]()
    while len(tasks) < count:
        task = _KINDS[len(tasks) % len(_KINDS)](random)
        if _split_of(task.question) == split:
            tasks.append(task)
    return tasks
