"""Conversations that a program makes, for supervised training: right ones, and those of a careless worker."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from fnroll.dialogue.chat import Chat
from fnroll.models.tiny.tasks import Step, Task
from fnroll.models.tiny.tools import ITEMS, UNITS, run_tool

_MARK = "\x00"


@dataclass(frozen=True)
class Demonstration:
    """Turns of the model, and what a tool gave back after each but the last."""

    turns: tuple[str, ...]
    outputs: tuple[str, ...]


def call_text(name: str, arguments: dict[str, Any]) -> str:
    """Return the turn that makes one call."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _change_digit(text: str, random: Random) -> str:
    places = [match.start() for match in re.finditer(r"\d", text)]
    if not places:
        return {"yes": "no", "no": "yes"}.get(text, text)
    place = random.choice(places)
    return text[:place] + random.choice("0123456789") + text[place + 1 :]


def _misread(arguments: dict[str, Any], random: Random) -> dict[str, Any]:
    """Return the arguments with one value misread: a digit of a number, an item, a unit or an operator."""
    key = random.choice(tuple(arguments))
    value = arguments[key]
    if key == "item":
        wrong: Any = random.choice(ITEMS)
    elif key == "unit":
        wrong = random.choice(tuple(UNITS))
    elif isinstance(value, int):
        wrong = int(_change_digit(str(value), random))
    elif random.random() < 0.5:
        wrong = re.sub(r"[-+*<>]", random.choice("-+*<>"), value)
    else:
        wrong = _change_digit(value, random)
    return {**arguments, key: wrong}


def _blunder(step: Step, arguments: dict[str, Any], random: Random) -> tuple[str, dict[str, Any]] | None:
    """Return a careless worker's call in the place of the right one, or None if the step is left out."""
    fate = random.random()
    if fate < 0.3:
        return None
    if fate < 0.45 and step.name != "calc":  # the wrong tool
        numbers = [value for value in arguments.values() if isinstance(value, int)]
        if step.name == "price":
            return "convert", {"value": numbers[0], "unit": random.choice(tuple(UNITS))}
        return "price", {"item": random.choice(ITEMS), "shop": numbers[0]}
    return step.name, _misread(arguments, random)


def demonstrate(task: Task, random: Random | None = None, carelessness: float = 0.0) -> Demonstration:
    """Return a conversation that works on a task.

    Args:
      task: what to solve.
      random: decides where mistakes are made; None makes none.
      carelessness: probability of a mistake in each call, and half of it in the final answer. A mistake is
        a misread number, item, unit or operator, the wrong tool, or a step left out. The conversation goes
        on with what the tool really gave back.
    """
    random = Random(0) if random is None else random
    results: list[str] = []
    turns: list[str] = []
    for step in task.steps:
        name, arguments = step.name, step.fill(results)
        if random.random() < carelessness:
            call = _blunder(step, arguments, random)
            if call is None:
                break
            name, arguments = call
        turns.append(call_text(name, arguments))
        results.append(run_tool(name, arguments))
    answer = results[-1] if results else str(random.randint(1, 99))
    if random.random() < carelessness / 2:
        answer = _change_digit(answer, random)
    return Demonstration((*turns, answer), tuple(results))


class DemonstrationEncoder:
    """Writes demonstrations as ids, exactly as a rollout of the same conversation has them.

    Args:
      chat: of the tokenizer and the tools.
    """

    def __init__(self, chat: Chat) -> None:
        self.chat, self._ids = chat, dict[str, list[int]]()
        question = [{"role": "user", "content": _MARK}]
        prompt = chat.render_prompt(question)
        join = chat.continue_turn(question, chat.encoder.encode("1<|im_end|>"), [_tool(_MARK)])
        self._prompt, self._join = prompt.text.split(_MARK), join.text.split(_MARK)

    def _encode(self, text: str) -> Sequence[int]:
        # Turns and tool outputs repeat; control tokens stand between them, so each is encoded alone.
        if text not in self._ids:
            self._ids[text] = list(self.chat.encoder.encode(text))
        return self._ids[text]

    def encode(self, task: Task, demonstration: Demonstration) -> tuple[list[int], list[bool]]:
        """Return ids, and for each whether it is the model's own."""
        ids = list(self.chat.encoder.encode(self._prompt[0] + task.question + self._prompt[1]))
        mask = [False] * len(ids)
        for index, turn in enumerate(demonstration.turns):
            own = self._encode(turn + "<|im_end|>")
            ids += own
            mask += [True] * len(own)
            if index < len(demonstration.outputs):
                given = self._encode(self._join[0] + demonstration.outputs[index] + self._join[1])
                ids += given
                mask += [False] * len(given)
        return ids, mask


def _tool(content: str) -> dict[str, str]:
    return {"role": "tool", "name": "calc", "content": content, "tool_call_id": "c00000000"}
