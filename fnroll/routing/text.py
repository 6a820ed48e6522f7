"""The routes of a record as plain data, for a line of a file."""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from typing import Any

import torch
from torch import Tensor

from fnroll.routing.assembled import AssembledRoutes
from fnroll.routing.envelope import from_little_endian, little_endian
from fnroll.routing.errors import EnvelopeError
from fnroll.routing.schema import Provenance

_DTYPES = {"int8": torch.int8, "int16": torch.int16, "int32": torch.int32, "uint8": torch.uint8}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def to_json(assembled: AssembledRoutes) -> dict[str, Any]:
    """Return the routes of a record as plain data; packed, since base64 alone is a third longer."""
    return {
        "routes": _pack(assembled.routes),
        "provenance": _pack(assembled.provenance),
        "status": assembled.status,
        "reason": assembled.reason,
    }


def from_json(value: Any) -> AssembledRoutes:
    """Return the routes that `to_json` described, bit for bit.

    Raises:
      EnvelopeError: if they are damaged.
    """
    if not isinstance(value, dict) or set(value) != {"routes", "provenance", "status", "reason"}:
        raise EnvelopeError("routes of a record must have the fields routes, provenance, status and reason")
    provenance = _unpack(value["provenance"])
    if (provenance > max(Provenance)).any():
        raise EnvelopeError(
            f"provenance has {int(provenance.max())}; it must be one of {list(map(int, Provenance))}"
        )
    return AssembledRoutes(_unpack(value["routes"]), provenance, value["status"], value["reason"])


def _pack(tensor: Tensor) -> str:
    data = base64.b64encode(zlib.compress(little_endian(tensor), level=1)).decode("ascii")
    return f"fnr1:{_NAMES[tensor.dtype]}:{'x'.join(map(str, tensor.shape))}:{data}"


def _unpack(text: Any) -> Tensor:
    parts = text.split(":", 3) if isinstance(text, str) else []
    if len(parts) != 4 or parts[0] != "fnr1" or parts[1] not in _DTYPES:
        raise EnvelopeError(
            f"{str(text)[:24]!r} is no packed tensor; it must be 'fnr1:<dtype>:<shape>:<data>'"
        )
    dtype = _DTYPES[parts[1]]
    try:
        shape = tuple(int(size) for size in parts[2].split("x"))
        size = math.prod(shape) * dtype.itemsize
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.b64decode(parts[3], validate=True), size + 1)
    except (ValueError, binascii.Error, zlib.error) as error:
        raise EnvelopeError(f"a packed tensor of {parts[1]} {parts[2]} is damaged ({error})") from error
    if min(shape) < 0 or len(data) != size or not unpacker.eof:
        raise EnvelopeError(f"a packed tensor of {parts[1]} {parts[2]} is damaged: its length differs")
    return from_little_endian(data, dtype, shape)
