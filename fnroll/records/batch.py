"""What goes into a rollout and what comes out of it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fnroll.checks import check_bool, check_int, fail
from fnroll.records.files.atomic import write_file
from fnroll.records.files.lines import parse_json, plain_json, read_lines
from fnroll.records.files.save import read_header
from fnroll.records.record import RolloutRecord, Status
from fnroll.records.training import TrainingBatch, to_training


def hash_prompt_id(prompt_id: int | str) -> int:
    """Return the 63-bit number that stands for a prompt in random keys; small ints are themselves."""
    if isinstance(prompt_id, int):
        return prompt_id & (2**63 - 1)
    digest = hashlib.sha256(prompt_id.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "little") & (2**63 - 1)


@dataclass(frozen=True)
class RolloutRequest:
    """Prompts to roll out, `n` samples each.

    Raises:
      ValueError: if a record already holds a rollout and `resume` is False.
    """

    records: Sequence[RolloutRecord]
    n: int = 1
    resume: bool = False
    """Keep the records that are already complete or truncated, go on with the unfinished ones where they
    stand, and roll out the others from their prompts."""
    changed: tuple[str, ...] = ()
    """What may differ from the run that an unfinished record was begun in: names out of its `run`, such as
    "seed", "step", "temperature". The new values count from here on."""

    def __post_init__(self) -> None:
        if not isinstance(self.records, Iterable):
            fail("RolloutRequest", "records", self.records, "a sequence of RolloutRecords")
        object.__setattr__(self, "records", tuple(self.records))
        check_int("RolloutRequest", "n", self.n, least=1)
        check_bool("RolloutRequest", "resume", self.resume)
        if isinstance(self.changed, str) or not isinstance(self.changed, Sequence):
            fail("RolloutRequest", "changed", self.changed, "a tuple of names")
        object.__setattr__(self, "changed", tuple(self.changed))
        for index, record in enumerate(self.records):
            if not isinstance(record, RolloutRecord):
                raise ValueError(
                    f"RolloutRequest.records[{index}] is a {type(record).__name__}; "
                    f"it must be a RolloutRecord"
                )
            if record.is_rolled_out and not self.resume:
                raise ValueError(
                    f"RolloutRequest.records[{index}] already holds a rollout (status {record.status}); "
                    f"pass a record with a prompt only, or resume=True to keep it, or to go on with it"
                )

    def expand(self) -> list[RolloutRecord]:
        """Return `n` records of each prompt, in order, with `prompt_id`, `sample` and `group` filled in."""
        expanded = []
        for index, record in enumerate(self.records):
            if record.status in (Status.COMPLETED, Status.TRUNCATED):
                expanded.append(record)
                continue
            if record.is_unfinished:
                expanded.append(_identify(record, index))
                continue
            # A record that came out of a rollout is one sample already.
            count = 1 if record.is_rolled_out else self.n
            expanded.extend(_start(record, index, sample) for sample in range(count))
        _check_identities(expanded)
        return expanded


def _identity(record: RolloutRecord, index: int) -> dict[str, Any]:
    return {
        "prompt_id": index if record.prompt_id is None else record.prompt_id,
        "group": index if record.group is None else record.group,
    }


def _identify(record: RolloutRecord, index: int) -> RolloutRecord:
    return record.replace(**_identity(record, index), sample=record.sample or 0)


def _start(record: RolloutRecord, index: int, sample: int) -> RolloutRecord:
    """Return a sample of a prompt, with nothing of an earlier rollout."""
    return RolloutRecord(
        messages=record.messages,
        prompt_ids=record.prompt_ids,
        metadata=record.metadata,
        sample=(record.sample or 0) + sample,
        **_identity(record, index),
    )


def _check_identities(records: Sequence[RolloutRecord]) -> None:
    seen: dict[tuple[object, object], int] = {}
    for index, record in enumerate(records):
        identity = (record.prompt_id, record.sample)
        if identity in seen:
            raise ValueError(
                f"records {seen[identity]} and {index} both are prompt_id {record.prompt_id!r}, sample "
                f"{record.sample}: they would draw the same noise; give each prompt its own prompt_id"
            )
        seen[identity] = index


@dataclass(frozen=True)
class RolloutBatch:
    """Rolled-out records, in the order of the request: the samples of a prompt stand together."""

    records: tuple[RolloutRecord, ...]

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[RolloutRecord]:
        return iter(self.records)

    def __getitem__(self, index: int) -> RolloutRecord:
        return self.records[index]

    def to_training(self, **options: Any) -> TrainingBatch:
        """Return the records as tensors; the options are those of `fnroll.to_training`."""
        return to_training(self.records, **options)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the records as JSON Lines; the file is whole or it is the one that was there before."""
        write_file(path, (dump_record(record).encode() for record in self.records))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RolloutBatch:
        """Read what `save` wrote, or the save of a rollout (`RolloutConfig.save`).

        Raises:
          ValueError: naming the line that is damaged and what is wrong with it; or the file, if it is a save
            that is damaged, half written or of another version.
        """
        records, has_header = [], read_header(path) is not None
        for number, line in read_lines(path):
            if has_header and number == 1:
                continue
            try:
                values = parse_json(line)
                if not isinstance(values, dict):
                    raise ValueError(f"a record is a JSON object, this is a {type(values).__name__}")
                records.append(RolloutRecord.from_dict(values))
            except (ValueError, TypeError) as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
        return cls(tuple(records))


# Fields that hold what callers and tools put into them.
_FOREIGN = frozenset(("messages", "metadata", "tool_calls"))


def dump_record(record: RolloutRecord) -> str:
    """Return a record as one line of JSON.

    Raises:
      TypeError: naming the record, if its metadata is not JSON-able.
    """
    values = record.to_dict()
    try:
        for name in _FOREIGN & values.keys():
            values[name] = plain_json(values[name], name)
        line = json.dumps(values, ensure_ascii=False) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"{record.label} cannot be written as JSON: {error}") from error
    # A lone surrogate, legal in JSON escapes, has no UTF-8.
    return line if _is_encodable(line) else json.dumps(values) + "\n"


def _is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
