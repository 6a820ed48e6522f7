"""Engine of the formats that put JSON calls between special tokens, inside one section per turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fnroll.dialogue.parsers.frame import Frame, broken, call_or_error, closed, failure
from fnroll.dialogue.parsers.scan import Malformed, Scan, read_json
from fnroll.dialogue.parsers.turn import Schemas


class Header(NamedTuple):
    """What stands before the JSON of a call."""

    name: str
    end: int
    """Where the JSON begins, white space aside."""
    id: str | None = None


@dataclass(frozen=True)
class Sections:
    """One such format; a `Format`. Text inside a section and outside its calls is noise."""

    begin: str
    end: str
    call_begin: str
    call_end: str
    separator: str
    """Stands in a call between its header and its JSON."""
    read_header: Callable[[Scan, int, int], Header]
    """Reads a header, given its start and the separator's end."""
    skip_trailer: Callable[[Scan, int], int] = Scan.skip_space
    """Skips what may stand between a call's JSON and its closing token."""
    is_quoted: bool = True

    @property
    def openers(self) -> tuple[str, ...]:
        """The section's token, and the call's for a call without a section."""
        return (self.begin, self.call_begin)

    def read(self, scan: Scan, start: int, opener: str, schemas: Schemas) -> Iterable[Frame] | None:
        """Read a section or one call; see `Format.read`."""
        return (self._read_call(scan, start),) if opener == self.call_begin else self._section(scan, start)

    def _section(self, scan: Scan, start: int) -> Iterator[Frame]:
        at, is_empty = start + len(self.begin), True
        while True:
            begin, marker = scan.first((self.call_begin, self.end), at)
            # A section that is not closed ends with its last call: what follows may be the answer.
            if marker or is_empty:
                yield Frame(begin, (), ((at, begin),))
            if marker != self.call_begin:
                break
            frame = self._read_call(scan, begin)
            yield frame
            at, is_empty = frame.end, False
        end = begin + len(marker) if marker or is_empty else at
        if is_empty and scan.text[at:begin].strip():
            yield Frame(end, (failure("there is no call in the section of calls", (start, end)),))
        else:
            yield Frame(end, ())

    def _read_call(self, scan: Scan, start: int) -> Frame:
        begin = start + len(self.call_begin)
        others = (self.call_begin, self.end)
        header = None
        try:
            split, marker = scan.first((self.separator, self.call_end, *others), begin)
            if marker != self.separator:
                raise Malformed("its name is not followed by its arguments", begin)
            header = self.read_header(scan, begin, split + len(marker))
            arguments, at = read_json(scan, scan.skip_space(header.end))
            end = closed(scan, self.skip_trailer(scan, at), self.call_end, others)
        except Malformed as error:
            return broken(scan, start, error, (self.call_end,), others, header.id if header else None)
        return Frame(end, (call_or_error(header.name, arguments, (start, end), header.id),))
