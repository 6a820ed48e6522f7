"""What commits to the routes and tokens of a call."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fnroll.routing.envelope import routed_experts_tensor_metadata

EXTRAS_DIGEST_VERSION = 1


def extras_digest(routes: Tensor | None, boundary: Tensor | None, boundary_index: int | None) -> str:
    """Return the SHA-256, as hex, of routes, sidecar and its index: a changed byte, dtype or shape shows."""
    return json_digest(
        {
            "version": EXTRAS_DIGEST_VERSION,
            "routes": None if routes is None else routed_experts_tensor_metadata(routes),
            "boundary": None if boundary is None else routed_experts_tensor_metadata(boundary),
            "boundary_index": boundary_index,
        }
    )


def token_digest(tokens: Sequence[int]) -> str:
    """Return the SHA-256, as hex, of token ids."""
    return hashlib.sha256(np.asarray(tokens, dtype="<i8").tobytes()).hexdigest()


def json_digest(value: Mapping[str, Any]) -> str:
    """Return the SHA-256, as hex, of plain data; the order of keys does not count."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
