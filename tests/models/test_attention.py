"""Attention under the masks of either form."""

import pytest
import torch

from fnroll.models.attention import attend, build_mask

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def causal(batch, head, query, key):
    return (key <= query) & (key > query - 5)


def masks(dtype, length, window):
    """The mask of a chunk as it is made for a CPU, and as it is made for any other device."""
    offset = torch.tensor([0, 3, 7])
    made = build_mask(3, length, window, offset, mask_function=causal, dtype=dtype)
    return made, made == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, {"s_aux": torch.tensor([0.1, 0.2, 0.3, 0.4])}])
@pytest.mark.parametrize("length", [1, 4])
def test_both_forms_of_a_mask_hide_the_same(dtype, options, length):
    window = 40
    with torch.random.fork_rng():
        torch.manual_seed(0)
        query, key, value = (
            torch.randn(3, h, n, 8, dtype=dtype) for h, n in ((4, length), (2, window), (2, window))
        )
    added, bool_ = masks(dtype, length, window)
    assert bool_.dtype == torch.bool != added.dtype and added.shape == (3, 1, length, window)
    one, other = (attend(None, query, key, value, mask, **options)[0] for mask in (added, bool_))
    assert torch.equal(one, other)


def test_other_devices_get_bool_masks():
    """Their kernels each make of it what they need."""
    mask = build_mask(1, 2, 4, 0, mask_function=causal, device="meta", dtype=torch.bfloat16)
    assert mask.dtype == torch.bool and mask.shape == (1, 1, 2, 4)
