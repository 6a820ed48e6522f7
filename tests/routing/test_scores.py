"""Weights of replayed experts, by family, and the self-check that finds the family's function."""

import pytest
import torch

from fnroll.routing import (
    SCORE_KINDS,
    RouterUnsupportedError,
    ScoreFunction,
    choose_score,
    discover_routers,
    replay_top_k,
    select_experts,
)
from fnroll.routing.scores import max_difference
from tests.routing.families import FAMILIES, SCORES, moe

KINDS = [ScoreFunction(kind, scale) for kind in SCORE_KINDS for scale in (1.0, 2.5)]


def logits(tokens=6, experts=8, dtype=torch.float32, spread=2.0, seed=0):
    return (torch.randn(tokens, experts, generator=torch.Generator().manual_seed(seed)) * spread).to(dtype)


def by_hand(kind, scale, row, chosen):
    """The weights of one token in plain numbers."""
    row = [float(x) for x in row]
    exp = [2.718281828459045**x for x in row]
    one = {
        "softmax": [e / sum(exp) for e in exp],
        "topk_softmax": exp,
        "sigmoid": [e / (1 + e) for e in exp],
        "sqrtsoftplus": [torch.nn.functional.softplus(torch.tensor(x)).item() ** 0.5 for x in row],
    }
    values = [one[kind.removesuffix("_norm")][i] for i in chosen]
    total = sum(values) if kind.endswith("_norm") or kind == "topk_softmax" else 1
    return [scale * value / total for value in values]


@pytest.mark.parametrize("score", KINDS, ids=lambda s: f"{s.kind}-{s.scale}")
def test_weights_are_those_written_out_by_hand(score):
    scores, chosen = logits(), torch.tensor([[3, 0, 7]] * 6)
    expected = [by_hand(score.kind, score.scale, row, [3, 0, 7]) for row in scores]
    torch.testing.assert_close(score(scores, chosen), torch.tensor(expected))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_functions_of_five_families_give_their_routers_own_weights_bit_for_bit(family, dtype):
    """Choice and weights; also of DeepSeek-V3, with bias and groups."""
    router = discover_routers(moe(family, dtype))[0].module
    hidden = torch.randn(40, 32, generator=torch.Generator().manual_seed(1)).to(dtype)
    live, weights, indices = router(hidden)
    score = SCORES[family]
    assert torch.equal(score(live, indices).to(weights.dtype), weights)
    bias = getattr(router, "e_score_correction_bias", None)
    groups = {} if bias is None else {"bias": bias, "num_groups": 4, "top_groups": 2}
    own = select_experts(live, 2, score, **groups)
    assert torch.equal(own.sort(-1).values, indices.sort(-1).values)
    assert score.probabilities(live).shape == live.shape


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_self_check_finds_the_function_with_the_smallest_error(family, dtype):
    router = discover_routers(moe(family, dtype))[0].module
    live, weights, indices = router(torch.randn(40, 32, generator=torch.Generator().manual_seed(1)).to(dtype))
    found = choose_score(live, indices, weights, scales=(2.5,))
    assert found.error == 0.0
    assert (found.score.kind, found.score.scale) == (SCORES[family].kind, SCORES[family].scale)


def test_the_runner_up_is_within_a_tolerance_and_is_not_taken():
    """Softmax over all and over the chosen are one function but for rounding: the first one near would do."""
    live = logits(200)
    indices = live.topk(2).indices
    for right, other in (("topk_softmax", "softmax_norm"), ("softmax_norm", "topk_softmax")):
        weights = ScoreFunction(right)(live, indices)
        near = max_difference(ScoreFunction(other)(live, indices), weights)
        assert 0 < near < 1e-6
        assert choose_score(live, indices, weights).score.kind == right


@pytest.mark.parametrize("score", KINDS, ids=lambda s: f"{s.kind}-{s.scale}")
def test_every_function_is_found_again(score):
    live = logits(200)
    indices = live.topk(3).indices
    assert choose_score(live, indices, score(live, indices), scales=(2.5, 1.0)).score == score


def test_a_router_with_weights_of_another_kind_is_refused_with_the_best_and_its_error():
    live = logits(20)
    indices = live.topk(2).indices
    odd = ScoreFunction("softmax")(live, indices) * torch.tensor([1.0, 0.5])
    with pytest.raises(
        RouterUnsupportedError, match=r"GatedRouter layers.3.gate: .* off by .* Known: softmax_norm"
    ):
        choose_score(live, indices, odd, where="GatedRouter layers.3.gate")
    with pytest.raises(RouterUnsupportedError):
        choose_score(live, indices, torch.zeros(20, 2))
    with pytest.raises(RouterUnsupportedError):
        choose_score(live, indices, torch.full((20, 2), torch.nan))
    with pytest.raises(RouterUnsupportedError):
        choose_score(live[:0], indices[:0], odd[:0])


def test_tokens_that_cannot_tell_two_functions_apart_are_refused():
    """Even logits give even weights, whatever the function."""
    even = torch.zeros(4, 8)
    indices = torch.tensor([[0, 1]] * 4)
    with pytest.raises(RouterUnsupportedError, match="try with other tokens"):
        choose_score(even, indices, torch.full((4, 2), 0.5))


def test_one_expert_a_token_has_weight_1_by_every_norm():
    live = logits(20)
    indices = live.topk(1).indices
    assert choose_score(live, indices, torch.ones(20, 1)).score.kind.endswith(("_norm", "topk_softmax"))


def test_groups_hide_experts_and_the_bias_ranks_without_weighing():
    live = torch.tensor([[2.0, -3.0, 1.0, 0.9, 0.8, 0.7, -1.0, -1.0]])
    score = ScoreFunction("sigmoid_norm")
    assert select_experts(live, 2, score).tolist() == [[0, 2]]
    assert select_experts(live, 2, score, num_groups=4, top_groups=2).tolist() == [[2, 3]]
    bias = torch.tensor([0.0] * 7 + [9.0])
    assert select_experts(live, 2, score, bias=bias).tolist() == [[7, 0]]
    weights = score(live, torch.tensor([[7, 0]]))
    assert weights[0, 0] < weights[0, 1]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"top_k": 9}, "top_k"),
        ({"num_groups": 3}, "3 groups"),
        ({"num_groups": 4, "top_groups": 5}, "top_groups"),
    ],
)
def test_choices_that_no_router_makes_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        select_experts(logits(), **{"top_k": 2, "score": SCORES["olmoe"], **options})


def test_a_function_must_be_a_known_one():
    with pytest.raises(ValueError, match=r"ScoreFunction\.kind is 'sparsemax'"):
        ScoreFunction("sparsemax")
    with pytest.raises(ValueError, match="scale"):
        ScoreFunction("softmax", scale=0.0)


@pytest.mark.parametrize("score", KINDS, ids=lambda s: f"{s.kind}-{s.scale}")
def test_replayed_experts_get_weights_of_the_live_scores_and_native_ones_stay(score):
    """I16; the order of the rollout's experts is kept."""
    live = logits()
    native = select_experts(live, 2, score)
    wanted = torch.tensor([[5, 1], [-1, -1], [0, 7], [1, 0], [-1, -1], [6, 2]], dtype=torch.int8)
    weights, chosen = replay_top_k(live, wanted, native, score)
    for token in range(6):
        expected = native[token] if token in (1, 4) else wanted[token].long()
        assert torch.equal(chosen[token], expected)
    assert torch.equal(weights, score(live, chosen))
    own = torch.full((6, 2), 0.25, dtype=torch.bfloat16)
    mixed, _ = replay_top_k(live, wanted, native, score, native_weights=own)
    assert mixed.dtype == torch.bfloat16 and torch.equal(mixed[[1, 4]], own[[1, 4]])
    assert torch.equal(mixed[[0, 2, 3, 5]], weights[[0, 2, 3, 5]].bfloat16())


@pytest.mark.parametrize("score", KINDS, ids=lambda s: f"{s.kind}-{s.scale}")
def test_gradients_reach_the_router_and_are_right(score):
    """In float64 throughout, against finite differences; experts that the router would never choose."""
    exact = ScoreFunction(score.kind, score.scale, wide=False)
    with torch.enable_grad():
        live = logits(3, 5, torch.float64).requires_grad_()
        wanted = live.topk(2, largest=False).indices
        native = live.topk(2).indices
        factor = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
        assert torch.autograd.gradcheck(lambda x: replay_top_k(x, wanted, native, exact)[0] * factor, live)
        (gradient,) = torch.autograd.grad((replay_top_k(live, wanted, native, exact)[0] * factor).sum(), live)
    assert (gradient.abs().sum(-1) > 0).all()


def test_forced_experts_that_are_all_too_unlikely_still_share_the_weight():
    """In float32 their probabilities are 0; a division by their sum would be NaN."""
    with torch.enable_grad():
        live = torch.tensor([[200.0, 0.0, 1.0]]).requires_grad_()
        weights, _ = replay_top_k(
            live, torch.tensor([[1, 2]]), torch.tensor([[0, 2]]), ScoreFunction("softmax_norm")
        )
        (gradient,) = torch.autograd.grad(weights[0, 0], live)
    torch.testing.assert_close(weights, torch.tensor([[0.26894143, 0.7310586]]))
    assert gradient.isfinite().all() and gradient[0, 1] > 0


def test_the_int8_ids_of_128_experts_are_not_wrapped():
    live = logits(2, 128)
    wanted = torch.tensor([[127, 0], [126, 127]], dtype=torch.int8)
    _, chosen = replay_top_k(live, wanted, live.topk(2).indices, SCORES["qwen3_moe"])
    assert chosen.tolist() == [[127, 0], [126, 127]]
