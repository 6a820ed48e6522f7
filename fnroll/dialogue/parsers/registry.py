"""Parsers by name: the built-in ones, those that a program registers, and those that packages offer."""

from __future__ import annotations

from importlib.metadata import entry_points

from fnroll.dialogue.parsers.deepseek import DEEPSEEK
from fnroll.dialogue.parsers.gemma4 import GEMMA4
from fnroll.dialogue.parsers.glm import GLM
from fnroll.dialogue.parsers.gpt_oss import GPT_OSS
from fnroll.dialogue.parsers.hermes import HERMES
from fnroll.dialogue.parsers.kimi import KIMI
from fnroll.dialogue.parsers.llama import LLAMA
from fnroll.dialogue.parsers.mistral import MISTRAL
from fnroll.dialogue.parsers.qwen3_coder import QWEN3_CODER
from fnroll.dialogue.parsers.turn import Parser

ENTRY_POINTS = "fnroll.parsers"
"""Group of entry points under which packages offer parsers; each is loaded when it is first asked for."""

_parsers: dict[str, Parser] = {
    "deepseek": DEEPSEEK,
    "gemma4": GEMMA4,
    "glm": GLM,
    "gpt_oss": GPT_OSS,
    "hermes": HERMES,
    "kimi": KIMI,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "qwen3_coder": QWEN3_CODER,
}


def register_parser(name: str, parser: Parser) -> None:
    """Make `parser` known as `name`, in place of any parser of that name."""
    if not callable(getattr(parser, "parse", None)):
        raise TypeError(f"a parser needs a method parse(text, *, prefix, tools); {parser!r} has none")
    _parsers[name] = parser


def get_parser(name: str) -> Parser:
    """The parser called `name`.

    Raises:
      ValueError: no parser has that name.
    """
    if name not in _parsers:
        for point in entry_points(group=ENTRY_POINTS, name=name):
            register_parser(name, point.load())
    if name not in _parsers:
        raise ValueError(f"unknown tool-call parser {name!r}; known: {', '.join(parser_names())}")
    return _parsers[name]


def parser_names() -> tuple[str, ...]:
    """Name of all known parsers, sorted; none is loaded."""
    return tuple(sorted({*_parsers, *(point.name for point in entry_points(group=ENTRY_POINTS))}))
