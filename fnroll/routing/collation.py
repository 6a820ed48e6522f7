"""Routes of many records as one batch, placed where the tokens are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fnroll.routing.assembled import AssembledRoutes
from fnroll.routing.errors import RouteDtypeError, RouteShapeError
from fnroll.routing.schema import MISSING


def collate(
    records: Sequence[AssembledRoutes],
    *,
    attention_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    width: int | None = None,
) -> Tensor:
    """Return the routes of a batch; padding is -1, so that it is routed natively.

    Args:
      records: one a row, or one after the other in a packed batch.
      attention_mask: `[B, S]`, not 0 on tokens: padded on any side.
      cu_seqlens: `[B + 1]`, where records begin in one packed row, and where the last one ends.
      width: S of a packed row that is padded at its end; None is as long as its tokens.

    Returns:
      `[B, S, L, K]`, or `[1, S, L, K]` packed, on the device of the mask or of `cu_seqlens`.

    Raises:
      RouteShapeError: naming the record that has another number of tokens than its place.
      RouteDtypeError: if the records are of different dtypes.
    """
    if not records:
        raise RouteShapeError("collate needs the routes of one record at least")
    kinds = {(record.routes.dtype, tuple(record.routes.shape[1:])) for record in records}
    if len(kinds) != 1:
        raise RouteDtypeError(f"records are of different schemas: {sorted(map(str, kinds))}")
    place = _to_mask(attention_mask, cu_seqlens, width)
    counts = place.sum(-1).tolist() if cu_seqlens is None else cu_seqlens.diff().tolist()
    if len(counts) != len(records):
        raise RouteShapeError(f"there are routes of {len(records)} records and places for {len(counts)}")
    for index, (record, count) in enumerate(zip(records, counts, strict=True)):
        if len(record) != count:
            raise RouteShapeError(f"record {index} has routes of {len(record)} tokens; the batch has {count}")
    rows = torch.cat([record.routes for record in records]).to(place.device)
    batch = rows.new_full((*place.shape, *rows.shape[1:]), MISSING)
    return batch.masked_scatter(place[..., None, None], rows)


def separate(
    batch: Tensor, *, attention_mask: Tensor | None = None, cu_seqlens: Tensor | None = None
) -> list[Tensor]:
    """Return the routes `[T, L, K]` of each record of a batch, without padding; undoes `collate`."""
    width = None if cu_seqlens is None else batch.shape[1]
    place = _to_mask(attention_mask, cu_seqlens, width)
    if place.shape != batch.shape[:2]:
        raise RouteShapeError(f"routes have shape {list(batch.shape)} and the mask {list(place.shape)}")
    counts = place.sum(-1).tolist() if cu_seqlens is None else cu_seqlens.diff().tolist()
    return list(torch.split(batch[place], counts))


def _to_mask(attention_mask: Tensor | None, cu_seqlens: Tensor | None, width: int | None) -> Tensor:
    """Return `[B, S]` bool: where the tokens are."""
    if (attention_mask is None) == (cu_seqlens is None):
        raise RouteShapeError("either attention_mask or cu_seqlens must be given")
    if attention_mask is not None:
        if attention_mask.ndim != 2 or width is not None:
            raise RouteShapeError(
                f"attention_mask has shape {list(attention_mask.shape)} and width is {width}; the mask "
                f"must be [B, S], and width is of packed batches"
            )
        return attention_mask.ne(0)
    assert cu_seqlens is not None
    ends = cu_seqlens.tolist()
    if cu_seqlens.ndim != 1 or not ends or ends[0] != 0 or sorted(ends) != ends:
        raise RouteShapeError(f"cu_seqlens is {ends}; it must start at 0 and not fall")
    width = ends[-1] if width is None else width
    if width < ends[-1]:
        raise RouteShapeError(f"width is {width}; the records end at {ends[-1]}")
    return torch.arange(width, device=cu_seqlens.device)[None].lt(ends[-1])
