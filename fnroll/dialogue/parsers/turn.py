"""The walk over a sampled turn: reasoning, calls and text, told apart in one pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fnroll.dialogue.message import ParsedTurn, ParseError
from fnroll.dialogue.parsers.frame import MAX_CALLS, Frame, flooded
from fnroll.dialogue.parsers.scan import Scan
from fnroll.dialogue.parsers.schema import parameter_schemas
from fnroll.dialogue.parsers.walk import Walk

THINK = ("<think>", "</think>")

Tools = Sequence[dict[str, Any]]
Schemas = Mapping[str, Mapping[str, Any]]


class Parser(Protocol):
    """Anything that turns sampled text into a message."""

    def parse(self, text: str, *, prefix: str, tools: Tools) -> ParsedTurn:
        """Parse one turn; never raises.

        Args:
          text: the sampled turn, decoded with special tokens kept; its stop token may still be there.
          prefix: the generation prompt, or any longer tail of the prompt.
          tools: JSON-schema tools, in OpenAI's form or bare.
        """
        ...


class Format(Protocol):
    """One way of writing calls."""

    @property
    def openers(self) -> tuple[str, ...]:
        """Markers at which a call, or a section of calls, may begin."""
        ...

    @property
    def is_quoted(self) -> bool:
        """Whether text values are quoted, so that a marker inside one is surely data."""
        ...

    def read(self, scan: Scan, start: int, opener: str, schemas: Schemas) -> Iterable[Frame] | None:
        """Read what begins with `opener` at `start`: one frame after the other; `None` for ordinary text.

        An empty `opener` means the first visible character of the answer. Not all frames may be asked for.
        """
        ...


@dataclass(frozen=True)
class TurnParser:
    """A parser for the families that mark calls and reasoning inside running text.

    What stands before the last closing marker of reasoning in a turn is thought: its calls are not made. A
    call in a block that is still open at the end of the turn is made: the model acted before it closed it.
    """

    formats: tuple[Format, ...]
    stops: tuple[str, ...]
    """Stop tokens, removed from the end of the text."""
    heads: tuple[str, ...] = ()
    """Markers that begin an assistant's turn: what stands before the last one in the prompt is over."""
    thoughts: tuple[tuple[str, str], ...] = (THINK,)
    """Opening and closing markers of reasoning."""
    ignored: tuple[str, ...] = ()
    """Markers that only group calls or text; they are no content."""
    interrupts: tuple[str, ...] = ()
    """Markers that end a reasoning block which was not closed."""
    leads: bool = False
    """Whether a call may begin an answer without any marker."""

    def parse(self, text: str, *, prefix: str, tools: Tools) -> ParsedTurn:
        """Parse one turn; see `Parser.parse`."""
        scan = Scan(text, end_of_turn(text, self.stops))
        schemas = parameter_schemas(tools)
        walk = self._begin(prefix)
        at = 0 if walk.closer else self._lead(scan, 0, walk, schemas)
        while at < scan.limit:
            at = self._step(scan, at, walk, schemas)
        return walk.message()

    @property
    def closers(self) -> tuple[str, ...]:
        """Closing markers of reasoning."""
        return tuple(closer for _, closer in self.thoughts)

    def _begin(self, prefix: str) -> Walk:
        """The state in which the prompt leaves the turn."""
        tail = max(
            (prefix.rfind(mark) + len(mark) for mark in self.stops + self.heads if mark in prefix), default=0
        )
        walk = Walk()
        for opener, closer in self.thoughts:
            opened, shut = prefix.rfind(opener, tail), prefix.rfind(closer, tail)
            if opened > shut:
                walk.open(closer, 0)
            elif shut != -1:
                walk.may_be_open = False
        return walk

    def _step(self, scan: Scan, at: int, walk: Walk, schemas: Schemas) -> int:
        """Read up to and including the next marker; return where to go on."""
        begin, marker = scan.first(self._markers(walk), at)
        walk.add(scan.text[at:begin])
        after = begin + len(marker)
        if not marker:
            return begin
        if marker in self.closers or (walk.closer and marker in self.interrupts):
            walk.close(scan.text, begin, marker)
            return self._lead(scan, after, walk, schemas)
        if marker in self.ignored:
            return after
        for opener, closer in self.thoughts:
            if marker == opener:
                return self._open(scan, begin, opener, closer, walk)
        return self._call(scan, begin, marker, walk, schemas)

    def _markers(self, walk: Walk) -> tuple[str, ...]:
        openers = tuple(opener for form in self.formats for opener in form.openers)
        if walk.closer:
            return (*openers, walk.closer, *self.interrupts)
        return openers + self.closers + self.ignored + tuple(opener for opener, _ in self.thoughts)

    def _open(self, scan: Scan, begin: int, opener: str, closer: str, walk: Walk) -> int:
        after = begin + len(opener)
        if not walk.is_visible or scan.find(closer, after) != -1:
            walk.open(closer, after)
        else:
            # An answer that mentions the marker and goes on is not a thought.
            walk.add(opener)
        return after

    def _call(self, scan: Scan, begin: int, opener: str, walk: Walk, schemas: Schemas) -> int:
        form = next(form for form in self.formats if opener in form.openers)
        shut = scan.find(walk.closer, begin) if walk.closer else -1
        # Without quotes nothing tells a closing marker inside a value from a real one: the first one counts.
        reach = scan.within(shut) if shut != -1 and not form.is_quoted else scan
        frames = form.read(reach, begin, opener, schemas)
        if frames is None:
            walk.add(opener)
            return begin + len(opener)
        return self._take(scan, begin, frames, walk)

    def _take(self, scan: Scan, begin: int, frames: Iterable[Frame], walk: Walk) -> int:
        """Note what frames hold, up to a closing marker of reasoning; return where to go on."""
        before = len(walk.outcomes)
        for frame in frames:
            if frame.outcomes and walk.count == MAX_CALLS:
                return self._stop(scan, frame.outcomes[0].span[0], walk)
            walk.count += bool(frame.outcomes)
            shut = self._shut(scan, begin, frame, walk)
            if shut != -1:
                walk.add(scan.text[begin:shut])
                walk.is_calling = True
                return shut
            if frame.is_whole:
                del walk.outcomes[before:]
            walk.add("", frame.outcomes)
            begin = frame.end
        return begin

    def _shut(self, scan: Scan, begin: int, frame: Frame, walk: Walk) -> int:
        """Where reasoning is closed before a frame ends, or -1.

        A closing marker inside a well-formed call is data. Inside a malformed one nobody can tell: it counts
        in a block that is open, and elsewhere where the call could not be read.
        """
        closers = (walk.closer,) if walk.closer else self.closers
        is_broken = any(isinstance(outcome, ParseError) for outcome in frame.outcomes)
        for start, end in ((begin, frame.end),) if walk.closer and is_broken else frame.unread:
            at, _ = scan.first(closers, start)
            if at < end:
                return at
        return -1

    def _stop(self, scan: Scan, begin: int, walk: Walk) -> int:
        """Give up at a call that is one too many; return the end of the turn."""
        if scan.first((walk.closer,) if walk.closer else self.closers, begin)[1]:
            # Whether that marker counts is not known; what may have been a thought is not run.
            walk.outcomes.clear()
        walk.add("", (flooded(begin, scan.limit),))
        return scan.limit

    def _lead(self, scan: Scan, at: int, walk: Walk, schemas: Schemas) -> int:
        """Read calls that begin an answer without a marker."""
        begin = scan.skip_space(at)
        for form in self.formats if self.leads and begin < scan.limit else ():
            if frames := form.read(scan, begin, "", schemas):
                return self._take(scan, begin, frames, walk)
        return at


def end_of_turn(text: str, stops: Sequence[str]) -> int:
    """Length of `text` without the stop tokens at its end."""
    end = len(text)
    while cut := next((len(stop) for stop in stops if text.endswith(stop, 0, end)), 0):
        end -= cut
    return end
