"""What the routes of one model look like, and what a row of them can mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from fnroll.checks import check_int, fail

MISSING = -1
"""In all K places of a row: nobody knows the route, so the model's own choice is taken there."""

BOUNDARY_SCHEMA_VERSION = 1
"""Of the sidecar that a call returns with the route of the token before it."""


class Provenance(IntEnum):
    """Where the route of a token comes from; kept beside the routes, since values do not tell."""

    REAL = 0
    """From the call that the token belongs to."""
    REPAIRED = 1
    """From the next call, which was the first to feed the token."""
    PLACEHOLDER = 2
    """Nobody fed the token; the row holds experts 0 to K-1 and means nothing."""
    MISSING = 3
    """Unknown: all -1."""
    NATIVE = 4
    """All -1, because the whole rollout is routed natively."""


def route_dtype(num_experts: int) -> torch.dtype:
    """Return the smallest signed dtype that holds the ids of so many experts, and -1.

    A function of the number alone: ids that were seen say nothing about those that will be.
    """
    for dtype in (torch.int8, torch.int16):
        if num_experts - 1 <= torch.iinfo(dtype).max:
            return dtype
    return torch.int32


@dataclass(frozen=True)
class RouteSchema:
    """The routers of a model."""

    num_experts: int
    """E, experts a layer that a router chooses among."""
    top_k: int
    """K, experts a token."""
    layer_ids: tuple[int, ...]
    """Numbers of the L layers that have a router, ascending; dense layers are left out."""
    model_id: str = ""

    def __post_init__(self) -> None:
        check_int("RouteSchema", "num_experts", self.num_experts, least=1, below=2**31)
        check_int("RouteSchema", "top_k", self.top_k, least=1, below=self.num_experts + 1)
        ids = self.layer_ids
        if not isinstance(ids, tuple) or not ids:
            fail("RouteSchema", "layer_ids", ids, "a tuple with the number of one layer at least")
        for index, layer in enumerate(ids):
            check_int(
                "RouteSchema", f"layer_ids[{index}]", layer, least=0 if index == 0 else ids[index - 1] + 1
            )
        if not isinstance(self.model_id, str):
            fail("RouteSchema", "model_id", self.model_id, "a string")

    @property
    def dtype(self) -> torch.dtype:
        """Of all routes under this schema."""
        return route_dtype(self.num_experts)

    @property
    def row_shape(self) -> tuple[int, int]:
        """`(L, K)`, the shape of a token's route."""
        return len(self.layer_ids), self.top_k

    @property
    def bytes_per_token(self) -> int:
        """Bytes that the route of a token takes."""
        return math.prod(self.row_shape) * self.dtype.itemsize

    def placeholder(self, length: int) -> Tensor:
        """Return `[length, L, K]` rows of experts 0 to K-1: different ones, as a dispatch needs."""
        row = torch.arange(self.top_k, dtype=self.dtype)
        return row.expand(length, *self.row_shape).contiguous()

    def missing(self, length: int) -> Tensor:
        """Return `[length, L, K]` rows of -1."""
        return torch.full((length, *self.row_shape), MISSING, dtype=self.dtype)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return {
            "num_experts": self.num_experts,
            "top_k": self.top_k,
            "layer_ids": list(self.layer_ids),
            "model_id": self.model_id,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> RouteSchema:
        """Return the schema that `to_json` described."""
        return cls(**{**value, "layer_ids": tuple(value["layer_ids"])})
