"""Philox against its published vectors, the noise against its distribution."""

import math

import pytest
import torch

from fnroll.core.rng import gumbel, init_keys, philox

ONES = 0xFFFFFFFF

# From the reference implementation's known-answer file (Random123, kat_vectors): philox4x32, 10 rounds.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def words(*values):
    return tuple(torch.tensor([value]) for value in values)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_gives_the_published_vectors(counter, key, expected):
    assert tuple(int(word) for word in philox(words(*counter), words(*key))) == expected


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_philox_is_bitwise_the_eager_one(backend):
    counter, key = torch.randint(0, 2**32, (4, 97)), torch.randint(0, 2**32, (2, 97))
    compiled = torch.compile(philox, backend=backend, fullgraph=True)
    for a, b in zip(philox(tuple(counter), tuple(key)), compiled(tuple(counter), tuple(key)), strict=True):
        assert torch.equal(a, b)


def test_a_row_draws_the_same_alone_in_a_subset_and_in_a_batch():
    key = init_keys(3, 0, torch.arange(8), torch.zeros(8, dtype=torch.int64))
    position = torch.arange(8) * 7
    batch = gumbel(key, position, 33)
    assert torch.equal(batch[[5, 2]], gumbel(key[[5, 2]], position[[5, 2]], 33))
    assert torch.equal(batch[3:4], gumbel(key[3:4], position[3:4], 33))


def test_a_shard_of_the_vocabulary_draws_what_the_whole_does():
    key, position = init_keys(0, 0, torch.arange(2), torch.arange(2)), torch.tensor([4, 5])
    assert torch.equal(gumbel(key, position, 100)[:, :41], gumbel(key, position, 41))


def test_keys_differ_by_each_part_of_the_identity():
    def key(seed=0, step=0, prompt=0, sample=0):
        return tuple(init_keys(seed, step, torch.tensor([prompt]), torch.tensor([sample]))[0].tolist())

    identities = [
        {}, {"seed": 1}, {"seed": 2**32}, {"step": 1}, {"prompt": 1}, {"prompt": 2**32}, {"sample": 1},
    ]  # fmt: skip
    assert len({key(**identity) for identity in identities}) == len(identities)


def test_noise_is_standard_gumbel():
    key = init_keys(11, 0, torch.arange(4), torch.zeros(4, dtype=torch.int64))
    noise = gumbel(key, torch.zeros(4, dtype=torch.int64), 100_000).double().flatten()
    count = noise.numel()
    assert noise.isfinite().all()
    # Mean and variance within five standard errors: no false alarm in a million runs, and the key is fixed.
    assert abs(noise.mean() - 0.5772156649) < 5 * math.pi / math.sqrt(6 * count)
    assert abs(noise.var() - math.pi**2 / 6) < 5 * math.sqrt((22 / 5 - 1) * (math.pi**4 / 36) / count) * 1.3
    # The upper tail decides who wins: P(noise > 9) = 1 - exp(-exp(-9)).
    tail = 1 - math.exp(-math.exp(-9))
    assert abs((noise > 9).double().mean() - tail) < 5 * math.sqrt(tail / count)


def test_sampled_tokens_follow_the_distribution():
    """Chi-square of 40,000 draws against softmax, 9 degrees of freedom: 33.7 is exceeded once in 10,000."""
    logits = torch.linspace(-2, 2, 10)
    key = init_keys(5, 0, torch.arange(40_000), torch.zeros(40_000, dtype=torch.int64))
    token = (logits + gumbel(key, torch.full((40_000,), 3), 10)).argmax(-1)
    expected = logits.softmax(0) * 40_000
    observed = torch.bincount(token, minlength=10)
    assert float(((observed - expected) ** 2 / expected).sum()) < 33.7
