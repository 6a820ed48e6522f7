"""A sweep over every causal language model of transformers, made tiny."""

from fnroll.testing.models.agreement import (
    TOLERANCE,
    Agreement,
    NotTinyError,
    causal_classes,
    measure,
    tiny_causal_lm,
)
from fnroll.testing.models.table import describe, read_table, write_table

__all__ = [
    "TOLERANCE",
    "Agreement",
    "NotTinyError",
    "causal_classes",
    "describe",
    "measure",
    "read_table",
    "tiny_causal_lm",
    "write_table",
]
