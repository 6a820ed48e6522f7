"""The processed distribution against the processors of `generate()`, and by hand."""

import math

import pytest
import torch
from transformers import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from fnroll.core.logits import draw, penalise, process
from fnroll.core.types import SamplingParams


def params(rows=1, *, temperature=1.0, top_k=0, top_p=1.0, penalty=1.0):
    return SamplingParams(
        temperature=torch.full((rows,), temperature),
        top_k=torch.full((rows,), top_k),
        top_p=torch.full((rows,), top_p, dtype=torch.float64),
        repetition_penalty=torch.full((rows,), penalty),
        max_top_k=top_k,
        use_top_p=top_p < 1,
        use_penalty=penalty != 1,
        use_noise=temperature > 0,
    )


def library(logits, history, *, temperature=1.0, top_k=0, top_p=1.0, penalty=1.0):
    """What `generate()` would sample from."""
    steps = [RepetitionPenaltyLogitsProcessor(penalty)] if penalty != 1 else []
    steps += [TemperatureLogitsWarper(temperature)] if temperature != 1 else []
    steps += [TopKLogitsWarper(top_k)] if top_k else []
    steps += [TopPLogitsWarper(top_p)] if top_p < 1 else []
    scores = logits.clone()
    for step in steps:
        scores = step(history, scores)
    return scores.softmax(-1)


GRID = [
    {"temperature": t, "top_k": k, "top_p": p, "penalty": r}
    for t in (1.0, 0.6, 1.7, 1e-6)
    for k in (0, 1, 5, 1000)
    for p in (1.0, 0.9, 0.3)
    for r in (1.0, 1.3, 0.8)
]


def hard_logits():
    """Rows of plain numbers, of ties, with -inf, all equal, and with one finite entry only."""
    generator = torch.Generator().manual_seed(0)
    plain = torch.randn(3, 40, generator=generator) * 3
    ties = torch.randint(-3, 4, (3, 40), generator=generator).float()
    holes = plain.masked_fill(torch.rand(3, 40, generator=generator) < 0.4, -torch.inf)
    single = torch.full((1, 40), -torch.inf)
    single[0, 7] = 1.5
    return torch.cat([plain, ties, holes, torch.zeros(1, 40), single])


@pytest.mark.parametrize("options", GRID, ids=lambda o: ",".join(f"{v:g}" for v in o.values()))
def test_distribution_equals_the_library_s(options):
    logits = hard_logits()
    rows = logits.shape[0]
    history = torch.randint(0, 40, (rows, 6), generator=torch.Generator().manual_seed(1))
    scores = process(logits, params(rows, **options), (history, torch.full((rows,), 6)))
    ours, theirs = scores.softmax(-1), library(logits, history, **options)
    finite = theirs.isfinite().all(-1)
    # The library itself gives NaN where logits / 1e-6 overflow; here every row must be a distribution.
    assert finite.any() and torch.allclose(ours.sum(-1), torch.ones(rows))
    assert torch.equal(ours[finite] > 0, theirs[finite] > 0)
    torch.testing.assert_close(ours[finite], theirs[finite], rtol=1e-6, atol=1e-7)


def test_history_is_the_row_s_own_tokens_and_no_padding():
    """Case: pads counted as history flip the argmax (id 0 at 1.0 against id 1 at 0.8, penalty 2)."""
    logits = torch.tensor([[1.0, 0.8, 0.0, 0.0, 0.0, -1.0, -1.0]])
    padded = torch.tensor([[5, 6, 0, 0]])
    out = penalise(logits, padded, torch.tensor([2]), torch.tensor([2.0]))
    assert out.argmax() == 0
    assert out[0, 5] == -2.0 and out[0, 0] == 1.0


def test_penalty_counts_a_token_once():
    logits = torch.tensor([[4.0, 1.0]])
    out = penalise(logits, torch.tensor([[0, 0, 0]]), torch.tensor([3]), torch.tensor([2.0]))
    assert out.tolist() == [[2.0, 1.0]]


def log_prob(logits, **options):
    row = params(1, **options)
    scores = process(torch.tensor([logits]), row, None)
    return (scores.log_softmax(-1))[0].tolist()


def test_log_prob_is_of_the_scaled_logits():
    """Case logprob-01: temperature 0.6, logits [1, 2, 4], token 0 is -5.0415, not -3.170 or -5.283."""
    assert log_prob([1.0, 2.0, 4.0], temperature=0.6)[0] == pytest.approx(-5.0415, abs=1e-4)
    assert log_prob([1.0, 0.0], temperature=0.5)[0] == pytest.approx(-0.1269, abs=1e-4)


def test_log_prob_is_over_the_kept_tokens():
    """Case: p = (.4, .3, .2, .1) with top_p .6 keeps two; the second has log(3/7)."""
    values = log_prob([math.log(p) for p in (0.4, 0.3, 0.2, 0.1)], top_p=0.6)
    assert values[1] == pytest.approx(math.log(3 / 7), abs=1e-6)
    assert values[2] == -math.inf


@pytest.mark.parametrize(
    ("logits", "temperature", "dtype"),
    [([1.0, 3.0, 2.0], 1e-6, torch.float16), ([1.0, 300.0, 2.0], 1e-38, torch.float32)],
)
def test_tiny_temperature_is_greedy_and_never_nan(logits, temperature, dtype):
    """Case sampling-01."""
    scores = process(torch.tensor([logits], dtype=dtype), params(temperature=temperature), None)
    assert scores.softmax(-1)[0].tolist() == [0.0, 1.0, 0.0]


def test_temperature_zero_takes_the_likeliest_and_keeps_its_log_prob():
    """Case sampling-01: top-k and top-p have no say at temperature 0."""
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    mixed = SamplingParams(
        temperature=torch.tensor([0.0]),
        top_k=torch.tensor([1]),
        top_p=torch.tensor([0.1], dtype=torch.float64),
        repetition_penalty=torch.tensor([1.0]),
        max_top_k=1,
        use_top_p=True,
    )
    scores = process(logits, mixed, None)
    token, value = draw(scores, mixed, torch.tensor([[1, 2]]), torch.tensor([0]))
    assert token.item() == 1
    assert value.item() == pytest.approx(logits.log_softmax(-1)[0, 1].item(), abs=1e-6)


@pytest.mark.parametrize("top_p", [1e-9, 0.01])
def test_tiny_top_p_keeps_the_likeliest(top_p):
    """Case sampling-01: one token always stays."""
    assert log_prob([0.0, 2.0, 1.0], top_p=top_p) == [-math.inf, 0.0, -math.inf]


@pytest.mark.parametrize("temperature", [0.0, 1e-38, 1e-6, 1.0, 1e30])
@pytest.mark.parametrize("top_k", [0, 1, 3, 50])
@pytest.mark.parametrize("top_p", [1e-9, 0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_any_value_gives_a_distribution_to_draw_from(temperature, top_k, top_p, dtype):
    """Case sampling-01: a vocabulary of three, smaller than top-k too; no NaN, and no row without a token."""
    logits = torch.tensor([[1.0, 3.0, 2.0], [1.0, 300.0, 2.0], [0.0, 0.0, 0.0]], dtype=dtype)
    row = params(3, temperature=temperature, top_k=top_k, top_p=top_p)
    scores = process(logits, row, None)
    probabilities = scores.softmax(-1)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(3))
    token, value = draw(scores, row, torch.tensor([[1, 2]] * 3), torch.tensor([4, 5, 6]))
    assert (probabilities[range(3), token] > 0).all() and value.isfinite().all()
    if temperature < 1e-3 or top_k == 1 or top_p == 1e-9:
        assert token[:2].tolist() == [1, 1]


def test_rows_have_their_own_parameters():
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0]]).expand(3, 4)
    mixed = SamplingParams(
        temperature=torch.tensor([1.0, 2.0, 1.0]),
        top_k=torch.tensor([2, 0, 0]),
        top_p=torch.tensor([1.0, 1.0, 0.5], dtype=torch.float64),
        repetition_penalty=torch.ones(3),
        max_top_k=2,
        use_top_p=True,
    )
    kept = process(logits, mixed, None).isfinite().sum(-1)
    assert kept.tolist() == [2, 4, 1]
