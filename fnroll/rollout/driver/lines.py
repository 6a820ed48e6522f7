"""Which record is in which line of the state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from fnroll.rollout.flight.flight import Flight


class Lines:
    """The flights that are loaded, by line. Only the driver writes here, and nobody else keeps a flight."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count))
        self._flights: dict[int, Flight] = {}
        self._line: dict[int, int] = {}
        self.queued: set[int] = set()
        """Lines whose records wait for a row."""

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, line: int) -> bool:
        return line in self._flights

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._flights))

    def __getitem__(self, line: int) -> Flight:
        return self._flights[line]

    @property
    def num_free(self) -> int:
        """How many lines hold nothing."""
        return len(self._free)

    def load(self, flights: Sequence[Flight]) -> list[int]:
        """Put flights into free lines, of which there must be enough; return the lines."""
        lines, self._free = self._free[: len(flights)], self._free[len(flights) :]
        for line, flight in zip(lines, flights, strict=True):
            self.put(line, flight)
        self.queued.update(line for line in lines if not self._flights[line].is_waiting)
        return lines

    def put(self, line: int, flight: Flight) -> None:
        """Say how the record of a line is now."""
        self._flights[line], self._line[flight.index] = flight, line

    def find(self, index: int) -> int:
        """Return the line of the record at a place of the batch."""
        return self._line[index]

    def select(self, is_meant: Callable[[Flight], bool]) -> list[int]:
        """Return the lines of some records, in order."""
        return sorted(line for line, flight in self._flights.items() if is_meant(flight))

    def take(self, line: int) -> Flight:
        """Free a line; return the flight that it held."""
        flight = self._flights.pop(line)
        del self._line[flight.index]
        self.queued.discard(line)
        self._free.append(line)
        return flight

    def unqueue(self, lines: Iterable[int]) -> None:
        """Say that records have a row."""
        self.queued.difference_update(lines)
