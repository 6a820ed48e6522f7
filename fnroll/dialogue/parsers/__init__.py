"""Tool-call parsers: sampled text in, message out; one per family of models, none ever raises."""

from fnroll.dialogue.parsers.detection import detect_parser as detect_parser
from fnroll.dialogue.parsers.registry import get_parser as get_parser
from fnroll.dialogue.parsers.registry import parser_names as parser_names
from fnroll.dialogue.parsers.registry import register_parser as register_parser
from fnroll.dialogue.parsers.turn import Parser as Parser
