"""The records of a training batch, one a line, however the batch lays them out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Lines:
    """N records that hold sampled tokens, left-aligned, and where their n sampled tokens are.

    Records that were never rolled out, as one whose prompt was too long, are not among them: nothing of
    theirs is scored, and what they are padded to must not change what the others get.
    """

    ids: Tensor
    """`[N, L]` int64, 0 behind each record's end."""
    length: Tensor
    """`[N]` int64."""
    number: Tensor
    """`[N]` int64: which record of the batch it is."""
    line: Tensor
    """`[n]` int64: of each sampled token."""
    place: Tensor
    """`[n]` int64: its index in its record, at least 1."""
    where: tuple[Tensor, Tensor]
    """`[n]` int64 each: its row and column in the batch."""

    @property
    def width(self) -> int:
        """L: the length of the longest."""
        return self.ids.shape[1]

    @property
    def valid(self) -> Tensor:
        """`[N, L]` bool: where there are tokens."""
        return torch.arange(self.width, dtype=torch.int64, device=self.ids.device) < self.length[:, None]

    def check_length(self, most: int | None, name: str) -> None:
        """Require that a model has a position for every token.

        Raises:
          ValueError: naming the first record that is too long.
        """
        long = () if most is None else (self.length > most).nonzero()[:, 0].tolist()
        for line in long:
            raise ValueError(
                f"score: record {int(self.number[line])} of the batch has {int(self.length[line])} tokens; "
                f"{name} has positions for at most {most}"
            )


def find_lines(
    input_ids: Tensor, position_ids: Tensor, attention_mask: Tensor | None, loss_mask: Tensor
) -> Lines:
    """Return the records of a batch that hold sampled tokens.

    Args:
      input_ids: `[R, T]` int64.
      position_ids: `[R, T]` int64: index of each token in its record.
      attention_mask: `[R, T]` int64, 1 on tokens; None where all are.
      loss_mask: `[R, T]` bool, True on sampled tokens.

    Raises:
      ValueError: if positions do not count from 0 in each record, or the first token of one is sampled.
    """
    whole = torch.ones_like(loss_mask) if attention_mask is None else attention_mask > 0
    row, column = whole.nonzero(as_tuple=True)
    place, ids = position_ids[row, column], input_ids[row, column]
    starts = place == 0
    number = starts.cumsum(0) - 1
    follows = torch.ones_like(starts)
    follows[1:] = (place[1:] == place[:-1] + 1) & (row[1:] == row[:-1])
    sampled = loss_mask[row, column]
    if not bool((starts | follows).all() and starts[:1].all()) or bool((starts & sampled).any()):
        raise ValueError(
            "score: the batch's position_ids must count up from 0 in each record, and the first token of a "
            "record cannot be a sampled one"
        )
    count = int(number[-1]) + 1 if len(number) else 0
    length = number.new_zeros(count).index_add(0, number, torch.ones_like(number))
    holds = number.new_zeros(count).index_add(0, number, sampled.long()) > 0
    line_of = holds.cumsum(0) - 1
    kept = holds[number]
    lengths = length[holds]
    shape = (len(lengths), int(lengths.max()) if len(lengths) else 0)
    return Lines(
        ids=ids.new_zeros(shape).index_put((line_of[number[kept]], place[kept]), ids[kept]),
        length=lengths,
        number=holds.nonzero()[:, 0],
        line=line_of[number[sampled]],
        place=place[sampled],
        where=(row[sampled], column[sampled]),
    )
