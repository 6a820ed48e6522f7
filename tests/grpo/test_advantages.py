import math
import statistics
import warnings

import pytest
import torch

from fnroll.grpo import group_advantages

F64 = {"dtype": torch.float64}


def advantages(rewards, group=None, **options):
    return group_advantages(rewards, group or [0] * len(rewards), **{**F64, **options}).tolist()


@pytest.mark.parametrize("rewards", [[1] * 4, [0.1] * 7, [1 / 3] * 6, [0.2] * 8, [0.7] * 12, [1e8 + 0.1] * 3])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_equal_rewards_give_exactly_zero(rewards, baseline, scale, as_tensor):
    """Case advantages-02: float noise is no signal; [0.1] * 7 has a spread of 8e-9 in float32."""
    given = torch.tensor(rewards, dtype=torch.float32) if as_tensor else rewards
    found = group_advantages(given, [3] * len(rewards), baseline=baseline, scale=scale, eps=0.0)
    assert not found.any() and found.dtype == torch.float32


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_a_group_of_one_gives_zero_and_a_warning(baseline, scale):
    """Case advantages-02: neither NaN nor the raw reward."""
    with pytest.warns(UserWarning, match="2 of 2 groups have one scored record.*'a', 'b'") as caught:
        found = group_advantages([5.0, -2.0], ["a", "b"], baseline=baseline, scale=scale)
    assert found.tolist() == [0.0, 0.0]
    assert caught[0].filename == __file__


def test_large_offsets_cancel():
    """Case advantages-02."""
    found = advantages([1e8 + 1, 1e8, 1e8], scale="none")
    assert found == pytest.approx([2 / 3, -1 / 3, -1 / 3], abs=1e-7)
    plain = [0.0, 1.0, 0.5, 0.25]
    moved = [reward + 1e6 for reward in plain]
    assert advantages(moved) == pytest.approx(advantages(plain), rel=1e-9)


def test_zero_and_one_with_and_without_scale():
    """Case advantages-02."""
    assert advantages([0, 1], scale="none") == [-0.5, 0.5]
    assert advantages([0, 1], eps=0.0) == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)])
    assert advantages([0, 1], eps=0.0, ddof=0) == [-1.0, 1.0]
    assert advantages([0, 1], eps=1.0, ddof=0) == pytest.approx([-1 / 3, 1 / 3])
    assert advantages([0, 1], scale="none", baseline="leave_one_out") == [-1.0, 1.0]


def test_leave_one_out_does_not_lose_its_digits():
    # In float32 with E[x²] - E[x]² the first came out as -2075.
    rewards = torch.tensor([0.0] + [0.95] * 7)
    found = group_advantages(rewards, [0] * 8, baseline="leave_one_out", scale="none")
    torch.testing.assert_close(found[0], torch.tensor(-0.95))
    torch.testing.assert_close(found[1:], torch.full((7,), 0.95 / 7))


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
def test_the_formula(baseline, scale, ddof):
    rewards = [0.3, 1.0, -2.0, 0.7, 0.7, 5.0, 0.1, 0.2]
    group = [0, 0, 1, 0, 1, 1, 0, 1]
    deviation = statistics.stdev if ddof else statistics.pstdev
    expected = []
    for i, reward in enumerate(rewards):
        mine = [r for r, g in zip(rewards, group, strict=True) if g == group[i]]
        others = [r for j, (r, g) in enumerate(zip(rewards, group, strict=True)) if g == group[i] and j != i]
        centre = statistics.mean(mine if baseline == "mean" else others)
        std = {"group": deviation(mine) + 1e-4, "batch": deviation(rewards) + 1e-4, "none": 1.0}[scale]
        expected.append((reward - centre) / std)
    found = advantages(rewards, group, baseline=baseline, scale=scale, ddof=ddof, eps=1e-4)
    assert found == pytest.approx(expected, rel=1e-12)


def test_unscored_records_are_in_no_statistic():
    rewards = [1.0, None, 0.0, None, 3.0, 1.0]
    group = [0, 0, 0, 1, 1, 1]
    found = advantages(rewards, group)
    expected = advantages([1.0, 0.0, 3.0, 1.0], [0, 0, 1, 1])
    assert found == [expected[0], 0.0, expected[1], 0.0, expected[2], expected[3]]
    batch = advantages(rewards, group, scale="batch")
    assert batch[0] == advantages([1.0, 0.0, 3.0, 1.0], [0, 0, 1, 1], scale="batch")[0]


def test_a_group_without_any_score_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert advantages([None, None, 0.0, 1.0], [0, 0, 1, 1])[:2] == [0.0, 0.0]
    with pytest.warns(UserWarning, match="one scored record"):
        assert advantages([None, 4.0, 0.0, 1.0], [0, 0, 1, 1])[:2] == [0.0, 0.0]


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_extreme_rewards_stay_finite(scale):
    for rewards in ([0.0, 1e-320], [0.0, 5e-324, 0.0], [1e200, -1e200]):
        found = advantages(rewards, scale=scale, eps=0.0)
        assert all(map(math.isfinite, found)), rewards


def test_tensors_and_any_key():
    rewards, group = torch.tensor([1.0, 0.0, 2.0, 5.0]), torch.tensor([7, 7, 3, 3])
    found = group_advantages(rewards, group)
    assert found.tolist() == group_advantages([1, False, 2, 5], ["x", "x", ("y", 1), ("y", 1)]).tolist()
    assert group_advantages([], []).shape == (0,)


BAD = [
    (([0.0, math.nan], [4, 4]), {}, r"rewards\[1\], of group 4, is nan"),
    (([-math.inf, 0.0], [0, 0]), {}, r"rewards\[0\], of group 0, is -inf"),
    ((torch.tensor([math.nan] * 2), [0, 0]), {}, r"rewards\[0\]"),
    (([0.0, "1"], [0, 0]), {}, r"rewards\[1\], of group 0, is '1'"),
    (([0.0, 10**400], [0, 0]), {}, r"rewards\[1\]"),
    (([0.0, [1.0]], [0, 0]), {}, r"rewards\[1\]"),
    (([0.0, 1.0], [0, None]), {}, r"group\[1\] is None"),
    (([0.0, 1.0], [0]), {}, "rewards has 2 entries and group 1"),
    ((torch.zeros(2, 2), [0, 0]), {}, r"rewards has shape \[2, 2\]"),
    (([0.0] * 5, [0, 0, 1, 1, 2]), {}, "most have 2 records, group 2 has 1; pass allow_unequal=True"),
    (([0.0, 1.0], [0, 0]), {"scale": "std"}, "scale is 'std'; it must be one of 'group', 'batch', 'none'"),
    (([0.0, 1.0], [0, 0]), {"baseline": "loo"}, "baseline is 'loo'"),
    (([0.0, 1.0], [0, 0]), {"ddof": 2}, "ddof is 2; it must be one of 0, 1"),
    (([0.0, 1.0], [0, 0]), {"eps": -1e-6}, "eps is -1e-06"),
]


@pytest.mark.parametrize(("args", "options", "message"), BAD)
def test_bad_input_is_named(args, options, message):
    with pytest.raises(ValueError, match=message):
        group_advantages(*args, **options)


def test_unequal_groups_when_asked_for():
    found = advantages([0, 1, 0, 1, 2], [0, 0, 1, 1, 1], allow_unequal=True)
    assert found == advantages([0, 1]) + advantages([0, 1, 2])
