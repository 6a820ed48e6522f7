"""Routes as one text: the `nrlre1` envelope of NeMo-RL, for HTTP and JSON."""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fnroll.routing.errors import EnvelopeError

ENVELOPE_MAGIC = "nrlre1"

_NAMES = {torch.int8: "int8", torch.int16: "int16", torch.int32: "int32"}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def encode_routed_experts(routes: Tensor) -> str:
    """Return `"nrlre1:<dtype>:<S>x<L>x<K>:<base64>"` of routes `[S, L, K]`, in their own dtype.

    The bytes are little-endian, row by row.

    Values are carried as they are, whatever they are.

    Raises:
      EnvelopeError: unless there are three dimensions, none of them 0, and int8, int16 or int32.
    """
    _check_routes(routes)
    shape = "x".join(map(str, routes.shape))
    data = base64.b64encode(little_endian(routes)).decode("ascii")
    return f"{ENVELOPE_MAGIC}:{_NAMES[routes.dtype]}:{shape}:{data}"


def decode_routed_experts(payload: Any, dtype: torch.dtype | None = None) -> Tensor:
    """Return the routes `[S, L, K]` of an envelope, or of nested lists as older writers made them.

    Args:
      payload: the text, or the lists.
      dtype: int8, int16 or int32; None takes the envelope's, and int32 for lists.

    Raises:
      EnvelopeError: if the payload is neither, or a value does not fit into `dtype`.
    """
    routes = _decode(payload) if isinstance(payload, str) else _from_lists(payload)
    dtype = dtype or (routes.dtype if isinstance(payload, str) else torch.int32)
    if dtype not in _NAMES:
        raise EnvelopeError(f"dtype is {dtype}; it must be one of {', '.join(_DTYPES)}")
    bounds = torch.iinfo(dtype)
    if int(routes.min()) < bounds.min or int(routes.max()) > bounds.max:
        raise EnvelopeError(
            f"the envelope holds {int(routes.min())} to {int(routes.max())}, which {dtype} cannot hold"
        )
    return routes.to(dtype)


def routed_experts_token_count(payload: Any) -> int:
    """Return S, the tokens of an envelope or of nested lists, without reading the routes."""
    if isinstance(payload, str):
        return _head(payload)[1][0]
    if not isinstance(payload, list) or not payload:
        raise EnvelopeError("routes that are no envelope must be nested lists with one token at least")
    return len(payload)


def routed_experts_tensor_metadata(routes: Tensor) -> dict[str, Any]:
    """Return what commits to routes: dtype, shape, and the SHA-256 of their little-endian bytes."""
    _check_routes(routes)
    return {
        "dtype": _NAMES[routes.dtype],
        "shape": list(routes.shape),
        "sha256": hashlib.sha256(little_endian(routes)).hexdigest(),
    }


def little_endian(tensor: Tensor) -> memoryview:
    """Return the bytes of an integer tensor in row-major order, little-endian on every machine."""
    array = tensor.detach().cpu().contiguous().numpy()
    return array.astype(array.dtype.newbyteorder("<"), copy=False).reshape(-1).view(np.uint8).data


def from_little_endian(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return the tensor that `little_endian` gave the bytes of."""
    # Without the copy the tensor would lie in memory that nobody may write to.
    name = str(dtype).removeprefix("torch.")
    array = np.frombuffer(data, dtype=np.dtype(name).newbyteorder("<"))
    return torch.from_numpy(array.astype(name).reshape(shape))


def _check_routes(routes: Any) -> None:
    if not isinstance(routes, Tensor) or routes.ndim != 3 or 0 in routes.shape:
        found = list(routes.shape) if isinstance(routes, Tensor) else type(routes).__name__
        raise EnvelopeError(
            f"routes have shape {found}; it must be [tokens, layers, experts], none of them 0"
        )
    if routes.dtype not in _NAMES:
        raise EnvelopeError(f"routes have dtype {routes.dtype}; it must be one of {', '.join(_DTYPES)}")


def _head(payload: str) -> tuple[torch.dtype, tuple[int, int, int], str]:
    """Return dtype, shape and base64 of an envelope."""
    parts = payload.split(":", 3)
    if len(parts) != 4 or parts[0] != ENVELOPE_MAGIC:
        raise EnvelopeError(
            f"{payload[:24]!r} is no envelope; it must be '{ENVELOPE_MAGIC}:<dtype>:<S>x<L>x<K>:<base64>'"
        )
    _, name, size, data = parts
    if name not in _DTYPES:
        raise EnvelopeError(f"the envelope has dtype {name!r}; it must be one of {', '.join(_DTYPES)}")
    sizes = size.split("x")
    if len(sizes) != 3 or not all(part.isascii() and part.isdecimal() and int(part) > 0 for part in sizes):
        raise EnvelopeError(f"the envelope has shape {size!r}; it must be three positive numbers, as 7x3x2")
    tokens, layers, top_k = map(int, sizes)
    return _DTYPES[name], (tokens, layers, top_k), data


def _decode(payload: str) -> Tensor:
    dtype, shape, data = _head(payload)
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise EnvelopeError(f"the envelope holds no base64 ({error})") from error
    expected = math.prod(shape) * dtype.itemsize
    if len(raw) != expected:
        raise EnvelopeError(f"the envelope holds {len(raw)} bytes; expected {expected} for {shape} {dtype}")
    return from_little_endian(raw, dtype, shape)


def _from_lists(payload: Any) -> Tensor:
    if not isinstance(payload, list) or not payload:
        raise EnvelopeError("routes that are no envelope must be nested lists with one token at least")
    try:
        routes = torch.tensor(payload)
    except (TypeError, ValueError, RuntimeError) as error:
        raise EnvelopeError(
            f"the nested lists are ragged or hold something else than integers ({error})"
        ) from error
    if routes.dtype != torch.int64 or routes.ndim != 3 or 0 in routes.shape:
        raise EnvelopeError(
            f"the nested lists are {routes.dtype} of shape {list(routes.shape)}; they must be integers "
            f"[tokens, layers, experts]"
        )
    return routes
