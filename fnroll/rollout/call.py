"""One `generate` call: what it was given, and what has come of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fnroll.config import SamplingConfig
from fnroll.records.batch import RolloutBatch
from fnroll.records.record import RolloutRecord

OnRecord = Callable[[int, RolloutRecord], None]


@dataclass
class Call:
    """A request on its way to a batch."""

    records: Sequence[RolloutRecord]
    sampling: SamplingConfig
    identity: tuple[int, int]
    """Seed and step."""
    changed: tuple[str, ...] = ()
    """What may differ from the run that a record was begun in."""
    max_steps: int | None = None
    on_record: OnRecord | None = None
    done: dict[int, RolloutRecord] = field(default_factory=dict)
    """Records that have ended, by place in the batch."""
    cut: dict[int, RolloutRecord] = field(default_factory=dict)
    """Records that were cut."""

    def ended(self) -> RolloutBatch:
        """Return the records that have ended, in the order of the request."""
        return RolloutBatch(tuple(self.done[index] for index in sorted(self.done)))

    def batch(self) -> RolloutBatch:
        """Return all records, in the order of the request."""
        found = {**self.cut, **self.done}
        return RolloutBatch(tuple(found[index] for index in sorted(found)))
