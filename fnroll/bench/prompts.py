"""Real text of exact lengths: prompts and tool outputs that every tokenizer can write."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fnroll.bench.workload import Ids, Page
from fnroll.dialogue.chat import Chat

_QUESTIONS = Path(__file__).parents[1] / "data" / "questions.txt"
WAYS = ("", " Answer in one word.", " Answer in one sentence.", " Explain step by step.")
_TEXT = (
    "The ferry leaves the north pier at nine and comes back before noon. In winter the harbour is closed "
    "on two days a week, and the letters go by road. Each house keeps a book in which the keeper writes "
    "what was sent, what came, and what was paid for it. Whoever asks for an old page gets a copy of it by "
    "the evening."
)
_TOOLS = {
    "lookup": ("Look up a page in the handbook.", ("query",)),
    "calculator": ("Work out an expression with numbers.", ("expression",)),
    "weather": ("Say what the weather will be in a place.", ("place", "day")),
    "send_letter": ("Send a letter to a person.", ("name", "text")),
    "find_route": ("Find the shortest way between two places.", ("start", "end", "means")),
    "convert": ("Convert an amount from one unit to another.", ("amount", "unit", "target")),
}


def read_questions() -> list[str]:
    """Return the shipped questions."""
    return _QUESTIONS.read_text(encoding="utf-8").splitlines()


def ask(count: int) -> list[str]:
    """Return `count` different questions: each asked plainly, for a word, a sentence or an explanation."""
    questions = read_questions()
    texts = [question + way for question in questions for way in WAYS]
    more = [f"Question {number}. {text}" for number in range(2, 2 + count // len(texts)) for text in texts]
    return [*texts, *more][:count]


def encode(tokenizer: Any, text: str) -> Ids:
    """Return the ids of a user message as the chat template writes it."""
    messages = [{"role": "user", "content": text}]
    return tuple(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))


def fill(start: str, length: Callable[[str], int], wanted: int) -> str:
    """Return `start` with more words, exactly `wanted` tokens long."""
    words, text, place = _TEXT.split(), start, 0
    while (now := length(text)) < wanted:
        pieces = (" " + words[place % len(words)], " a", "a", ".", "1")
        grown = [text + piece for piece in pieces if now < length(text + piece) <= wanted]
        if not grown:
            break
        text, place = grown[0], place + 1
    if length(text) != wanted:
        raise ValueError(f"no text of {wanted} tokens begins with {start[:40]!r}")
    return text


def system_text(tools: int) -> str:
    """Return a system prompt with the schemas of `tools` tools."""
    schemas = [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": about,
                "parameters": {
                    "type": "object",
                    "properties": {argument: {"type": "string"} for argument in arguments},
                    "required": list(arguments),
                },
            },
        }
        for name, (about, arguments) in list(_TOOLS.items())[:tools]
    ]
    listed = "\n".join(map(json.dumps, schemas))
    return f"You answer with the help of tools. To use one, write its name and arguments.\n{listed}"


def make_conversations(chat: Chat, count: int, tools: int, turn: int) -> list[list[dict[str, str]]]:
    """Return conversations with one system prompt, of a multiple of `turn` tokens each."""
    system = {"role": "system", "content": system_text(tools)}

    def length(text: str) -> int:
        return len(chat.render_prompt([system, {"role": "user", "content": text}]).ids)

    found = []
    for text in ask(count):
        wanted = -(-length(text) // turn) * turn
        found.append([system, {"role": "user", "content": fill(text, length, wanted)}])
    return found


def make_pages(chat: Chat, stop: int, lengths: Sequence[int]) -> tuple[Page, ...]:
    """Return tool outputs; with what the template writes around them, of exactly these lengths in tokens."""
    history = ({"role": "user", "content": "?"},)

    def join(text: str) -> Ids:
        following = [{"role": "tool", "name": "lookup", "content": text}]
        return chat.continue_turn(history, [stop], following).ids

    texts = [fill(f"{place}", lambda text: len(join(text)), wanted) for place, wanted in enumerate(lengths)]
    return tuple(Page(text, join(text)) for text in texts)
