"""Keeps a file of all records of a running rollout, so that a killed one can be gone on with."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fnroll.records.batch import RolloutBatch, RolloutRequest, dump_record
from fnroll.records.files.save import read_header, write_save
from fnroll.records.record import RolloutRecord
from fnroll.records.run import check_run
from fnroll.records.status import Status

Stand = Callable[[], Mapping[int, RolloutRecord]]
"""Gives records by their places in the batch."""


class Saver:
    """Writes the save of one `generate` call.

    Args:
      path: of the file; None writes nothing.
      every: decode steps between two saves.
      run: what decides the tokens of the records, by name.
    """

    def __init__(self, path: str | None, every: int, run: Mapping[str, Any]) -> None:
        self.path, self.every, self.run = path, every, run
        self._ended: dict[int, str] = {}
        self._open: dict[int, str] = {}
        self._steps = 0

    def is_due(self, steps: int) -> bool:
        """Whether it is time for a save, after so many decode steps."""
        return self.path is not None and steps - self._steps >= self.every

    def save(self, ended: Mapping[int, RolloutRecord], stand: Stand | None, steps: int) -> None:
        """Write all records by their places in the batch.

        Args:
          ended: those that have ended.
          stand: says how all others stand; None leaves them as they were in the last save.
          steps: decode steps so far.

        Raises:
          TypeError: naming the record whose metadata is not JSON-able.
        """
        if self.path is None:
            return
        for index, record in ended.items():
            if index not in self._ended:  # an ended record does not change: it is put into JSON once
                self._ended[index] = dump_record(record)
        if stand is not None:
            self._open = {index: dump_record(record) for index, record in stand().items()}
        lines = {**self._open, **self._ended}
        unfinished = len(lines) - len(self._ended)
        write_save(self.path, (lines[index] for index in sorted(lines)), unfinished, self.run)
        self._steps = steps


def check_overwrite(path: str, records: Sequence[RolloutRecord]) -> None:
    """Require that a save about to be written over holds nothing unfinished that `records` do not go on with.

    Raises:
      ValueError: naming the file and what is in it.
    """
    if not os.path.exists(path) or os.path.getsize(path) == 0:
        return
    header = read_header(path)
    if header is None:
        raise ValueError(f"{path} exists and is not the save of a rollout; give another path")
    mine = {(record.prompt_id, record.sample) for record in records if record.is_rolled_out}
    found = RolloutBatch.load(path) if header["unfinished"] else RolloutBatch(())
    # A failed record holds nothing to go on with; it is rolled out anew.
    kept = [record for record in found if record.status != Status.FAILED]
    if lost := [record for record in kept if (record.prompt_id, record.sample) not in mine]:
        raise ValueError(
            f"{path} holds an unfinished rollout ({header['unfinished']} of {header['records']} records), "
            f"and {lost[0].label} of it is not gone on with here; go on with it, or remove the file"
        )


def read_request(
    path: str | os.PathLike[str], request: RolloutRequest, run: Mapping[str, Any], changed: Sequence[str] = ()
) -> RolloutRequest:
    """Return the request that goes on with a save; `request` itself if there is no such file yet.

    Args:
      path: of the save.
      request: as it was made at first.
      run: what decides the tokens of the records, by name.
      changed: names in `run` that may differ from the save's.

    Raises:
      ValueError: naming the file and what differs, if it is damaged or the save of another request or run.
    """
    if not os.path.exists(path):
        return request
    header = read_header(path)
    if header is None:
        raise ValueError(f"{path} is not the save of a rollout, or its header is damaged")
    check_run(str(path), header["run"], run, changed)
    found, wanted = RolloutBatch.load(path).records, request.expand()
    if len(found) != len(wanted):
        raise ValueError(f"{path} holds {len(found)} records, and the request asks for {len(wanted)}")
    for index, (left, right) in enumerate(zip(found, wanted, strict=True)):
        for name in ("prompt_id", "sample", "messages", "prompt_ids"):
            if _plain(getattr(left, name)) != _plain(getattr(right, name)):
                raise ValueError(
                    f"{path} is of another request: {name} of record {index} is {getattr(left, name)!r} "
                    f"there, and {getattr(right, name)!r} here"
                )
    return RolloutRequest(found, resume=True, changed=tuple(changed))


def _plain(value: Any) -> Any:
    """Return a value as JSON gives it back."""
    return [dict(item) if isinstance(item, Mapping) else item for item in value] if _is_list(value) else value


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
