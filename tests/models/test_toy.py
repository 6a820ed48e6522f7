"""The toy model gives the answers that its plain-Python description says."""

import pytest
import torch

from fnroll.core.model import Chunk
from fnroll.models import toy_logits, toy_model
from tests.models.helpers import roll


def test_logits_by_hand():
    # 1 * 3 + 2 * 5 + 2 = 15, which is 4 on a circle of 11 ids.
    assert toy_logits([3, 5], 11) == [-4, -3, -2, -1, 0, -1, -2, -3, -4, -5, -5]
    assert toy_logits([], 4, sharpness=2.0) == [0, -2, -4, -2]
    assert toy_logits([7], 5, sharpness=0.0) == [0] * 5


def feed(model, cache, pieces, start=0, width=4, rows=2, row=1):
    """Feed pieces of one record to one row of a cache; return the logits after each."""
    found = []
    for piece in pieces:
        first = start + len(piece) - width
        position = torch.arange(first, first + width)
        chunk = Chunk(
            tokens=torch.tensor([[0] * (width - len(piece)) + list(piece)]),
            start=torch.tensor([first]),
            slots=torch.where(position >= start, position, cache.keys[0].shape[1] - 1)[None],
            rows=torch.tensor([row]),
            window=12,
        )
        output = model.fn(model.params, chunk, cache)
        cache = output.cache
        found.append(output.logits[0].tolist())
        start += len(piece)
    return found, cache


@pytest.mark.parametrize("pieces", [[[3, 1, 4, 1]], [[3], [1], [4], [1]], [[3, 1], [4, 1]], [[3, 1, 4], [1]]])
def test_any_cut_into_chunks_gives_the_same_answers(pieces):
    model = toy_model(13, sharpness=0.5)
    found, _ = feed(model, model.init_cache(2, 12), pieces)
    known = []
    for piece, logits in zip(pieces, found, strict=True):
        known += piece
        assert logits == toy_logits(known, 13, 0.5)


@pytest.mark.parametrize(
    "damage",
    [
        lambda keys, values: keys[1, 1].add_(1),  # another token in a slot
        lambda keys, values: values[1, 2].add_(1),  # a shifted position
        lambda keys, values: keys[1].copy_(keys[1].roll(1, dims=0)),  # shifted slots
    ],
)
def test_a_damaged_cache_shows_in_the_answer(damage):
    model = toy_model(13)
    _, cache = feed(model, model.init_cache(2, 12), [[3, 1, 4]])
    damage(cache.keys[0], cache.values[0])
    found, _ = feed(model, cache, [[1]], start=3)
    assert found[0] != toy_logits([3, 1, 4, 1], 13)


def test_other_rows_and_later_slots_do_not_matter():
    model = toy_model(13)
    _, cache = feed(model, model.init_cache(2, 12), [[3, 1, 4]])
    cache.keys[0][0], cache.values[0][0] = 99.0, 99.0
    cache.keys[0][1, 5:], cache.values[0][1, 5:] = 99.0, 99.0
    found, _ = feed(model, cache, [[1]], start=3)
    assert found[0] == toy_logits([3, 1, 4, 1], 13)


def test_the_model_writes_to_no_cache_it_was_given():
    model = toy_model(13)
    cache = model.init_cache(2, 12)
    _, new = feed(model, cache, [[3, 1, 4]])
    assert not cache.keys[0].any() and new.keys[0].any()


def test_a_greedy_rollout_by_hand():
    model = toy_model(11, stop_ids=(0,))
    [record] = roll(model, prompts=([3, 5],), temperature=0.0, max_length=12)
    # 15 -> 4; 15 + 3 * 4 + 1 = 28 -> 6; 28 + 4 * 6 + 1 = 53 -> 9; 53 + 5 * 9 + 1 = 99 -> 0, the stop id.
    assert record.tokens == (3, 5, 4, 6, 9, 0)
    assert (record.status, record.reason, record.num_turns) == ("COMPLETED", "eos", 1)
    assert record.loss_mask == (False, False, True, True, True, True)
    total = torch.tensor(toy_logits([3, 5], 11)).exp().sum().log()
    assert record.log_probs[2] == pytest.approx(-float(total), abs=1e-6)
