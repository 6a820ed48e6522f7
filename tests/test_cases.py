"""The traps that other systems fell into: each is a test, and says so by its id."""

import ast
import re
from pathlib import Path

import pytest

# Parser, mask, template, tools, EOS, budget; losses, advantages, log-probs, sampling; schedule, cache,
# padding, routes.
CASES = [
    "parser-01",  # end marker inside a JSON string argument
    "parser-04",  # XML values typed by their schema: true, null, dates, unions, raw strings
    "parser-05",  # one broken call among good ones; keys missing; wrong JSON shapes
    "parser-07",  # names of tools and parameters: hyphen, dot, colon, non-ASCII
    "fresh-05",  # the id that the model wrote in its call is the id in the tool message
    "reliability-02",  # time of parsing grows with the turn, not with its square
    "mask-02",  # a mask over many turns that stops at the first EOS
    "eos-02",  # the ending EOS is kept, trained and told apart from a cut
    "budget-03",  # huge or awkward tool output
    "budget-04",  # call flood and endless loops
    "tools-02",  # CancelledError and StopIteration
    "tools-05",  # results that are not strings
    "tools-07",  # two tools of one name
    "tools-08",  # arguments that the tool does not take
    "template-02",  # a template that rewrites history
    "template-03",  # what follows a turn, from the template alone
    "template-06",  # characters split over tokens, turns and the budget's end
    "grpo-loss-02",  # nothing left to train
    "grpo-loss-04",  # clipping by sign, clip-higher, dual clip
    "advantages-02",  # no spread: equal rewards, float noise, a group of one, large offsets
    "logprob-01",  # log-probs of the wrong distribution at a temperature other than 1
    "logprob-03",  # lists that got out of step
    "sampling-01",  # edge values of temperature, top_p and top_k
    "sampling-03",  # identical samples in a group under a seed
    "sampling-06",  # history of a reused row or of a returning turn
    "schedule-03",  # a second call on the same engine, also after one that raised
    "schedule-04",  # the model is left as it was found
    "cache-01",  # weights change between calls, with everything shared and parked
    "cache-02",  # sliding windows and mixed layers, with returning turns
    "padding-01",  # positions of unequal rows, and of a returning turn of another width
    "fresh-10",  # a whole number written as a float, for an int parameter
    "fresh-11",  # an Enum's member and a tuple, not their JSON
    "fresh-12",  # dataclass, pydantic, date, Path, Sequence and set parameters
    "padding-04",  # zero prompts, an empty prompt, prompts without room
    "routing-01",  # the last token of a turn has no route yet
    "fresh-06",  # a template that writes today's date
    "fresh-15",  # arguments of a call in the prompt as a string of JSON
    "fresh-16",  # an assistant message of calls without content
    "fresh-17",  # content as a list of text parts
    "fresh-18",  # a prompt that ends with an assistant message
    "fresh-20",  # prompt ids as tensors, arrays, ranges
    "fresh-21",  # rewards and metadata of NumPy
    "fresh-02",  # packed records that see each other
]


def texts_of_tests():
    """Return name, docstring and the comment right above of every test function."""
    texts = []
    for path in sorted(Path(__file__).parent.rglob("test_*.py")):
        source = path.read_text(encoding="utf-8")
        lines = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                above = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 2
                comment = []
                while above >= 0 and lines[above].startswith("#"):
                    comment.append(lines[above])
                    above -= 1
                texts.append("\n".join([node.name, ast.get_docstring(node) or "", *comment]))
    return texts


@pytest.mark.parametrize("case", CASES)
def test_every_case_has_a_test(case):
    spelled = re.compile(rf"\b{case}\b|_{case.replace('-', '_')}(_|$)", re.MULTILINE)
    assert any(spelled.search(text) for text in texts_of_tests()), f"no test names case {case}"
