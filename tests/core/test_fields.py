"""What a record has for every token stands once, and the state, the host and the trainer follow it."""

import dataclasses

import torch

from fnroll.core.append import append
from fnroll.core.fields import PER_TOKEN
from fnroll.core.types import Records, init_records
from fnroll.records.record import RolloutRecord


def test_every_field_of_the_state_with_an_entry_a_token_is_in_the_table():
    records = init_records(3, 17, support_size=2)
    named = {field.name for field in dataclasses.fields(Records)}
    grown = {name for name in named if 17 in getattr(records, name).shape[1:2]}
    assert grown == set(PER_TOKEN) <= {field.name for field in dataclasses.fields(RolloutRecord)}
    for name, field in PER_TOKEN.items():
        tensor = getattr(records, name)
        assert tensor.dtype == getattr(torch, field.dtype) and bool((tensor == field.empty).all())
        assert tensor.ndim == 2 + field.is_vector
    assert init_records(3, 17).support is None


def test_what_was_not_sampled_is_empty_whatever_is_given_for_it():
    records = append(
        init_records(2, 6, support_size=2),
        torch.tensor([1]),
        torch.tensor([3]),
        {
            "tokens": torch.tensor([[4, 5, 6, 7]]),
            "loss_mask": torch.tensor([[True, False, True, True]]),
            "log_probs": torch.tensor([[-1.0, torch.nan, -3.0, -4.0]]),
            "weight_versions": torch.tensor([[8, 9, 8, 8]], dtype=torch.int32),
            "support": torch.arange(8, dtype=torch.int32).reshape(1, 4, 2),
        },
    )
    assert records.length.tolist() == [0, 3, 0]
    assert records.tokens[1].tolist() == [4, 5, 6, 0, 0, 0]
    assert records.loss_mask[1].tolist() == [True, False, True, False, False, False]
    assert records.log_probs[1].tolist() == [-1, 0, -3, 0, 0, 0]
    assert records.weight_versions[1].tolist() == [8, -1, 8, -1, -1, -1]
    assert records.support[1].tolist() == [[0, 1], [-1, -1], [4, 5], [-1, -1], [-1, -1], [-1, -1]]


def test_fields_that_are_not_given_are_empty():
    records = append(
        init_records(1, 4, support_size=1),
        torch.tensor([0]),
        torch.tensor([2]),
        {"tokens": torch.tensor([[3, 3]])},
    )
    assert not records.loss_mask.any() and not records.log_probs.any()
    assert (records.weight_versions == -1).all() and (records.support == -1).all()
