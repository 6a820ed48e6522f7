"""Shapes and dtypes of the state after every step, checked with jaxtyping in eager mode."""

from typing import Any

import pytest
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int32, Int64, jaxtyped

from fnroll.core.tree import leaf_names, tree_leaves
from tests.core.helpers import running
from tests.core.test_steps import STEPS

Tensor = torch.Tensor
SHAPES: dict[str, Any] = {
    "records.tokens": Int64[Tensor, "lines length"],
    "records.loss_mask": Bool[Tensor, "lines length"],
    "records.log_probs": Float32[Tensor, "lines length"],
    "records.weight_versions": Int32[Tensor, "lines length"],
    "records.length": Int64[Tensor, " lines"],
    "records.limit": Int64[Tensor, " lines"],
    "records.turn": Int64[Tensor, " lines"],
    "records.status": Int64[Tensor, " lines"],
    "records.reason": Int64[Tensor, " lines"],
    "records.key": Int64[Tensor, "lines 2"],
    "rows.record": Int64[Tensor, " rows"],
    "rows.cached": Int64[Tensor, " rows"],
    "rows.sound": Int64[Tensor, " rows"],
    "queue.ticket": Int64[Tensor, " lines"],
    "queue.front": Int64[Tensor, ""],
    "queue.back": Int64[Tensor, ""],
    "cache.keys[0]": Float[Tensor, "rows length+1 heads size"],
    "cache.values[0]": Float[Tensor, "rows length+1 heads size"],
    "sampling.temperature": Float32[Tensor, " lines"],
    "sampling.top_k": Int64[Tensor, " lines"],
    "sampling.top_p": Float64[Tensor, " lines"],
    "sampling.repetition_penalty": Float32[Tensor, " lines"],
    "stop_ids": Int64[Tensor, " stops"],
    "version": Int32[Tensor, ""],
}


@pytest.mark.parametrize("name", STEPS)
def test_every_leaf_keeps_its_documented_shape_and_dtype(name):
    model, state = running()
    result = STEPS[name](model, state)
    if isinstance(result, tuple):
        result = next(item for item in result if hasattr(item, "records"))
    leaves = dict(zip(leaf_names(result), tree_leaves(result), strict=True))
    assert leaves.keys() == SHAPES.keys()
    with jaxtyped("context"):
        for path, leaf in leaves.items():
            assert isinstance(leaf, SHAPES[path]), (path, leaf.dtype, leaf.shape)
