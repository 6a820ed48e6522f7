"""Groups that tell nothing are left out."""

import pytest
import torch

from fnroll.grpo import dynamic_filter, group_advantages


def test_groups_that_differ_are_kept():
    rewards = [1, 0, 1, 1, 0, 0, None, 1, None, None, 1, 0, 0.1, 0.1]
    group = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    kept = dynamic_filter(rewards, group)
    assert [g for g, keep in zip(group, kept.tolist(), strict=True) if keep] == [0, 0, 5, 5]
    assert dynamic_filter(rewards, group, max_groups=1).sum() == 2
    assert dynamic_filter(rewards, group, max_groups=0).sum() == 0
    assert kept.dtype == torch.bool and dynamic_filter([], []).shape == (0,)


def test_groups_are_kept_whole_and_only_zeros_are_dropped():
    rewards, group = [1.0, None, 0.0, 1.0, 1.0, 1.0], [0, 0, 0, 1, 1, 1]
    kept = dynamic_filter(rewards, group)
    assert kept.tolist() == [True] * 3 + [False] * 3
    assert not group_advantages(rewards, group)[~kept].any()


def test_what_advantages_refuse_is_refused():
    with pytest.raises(ValueError, match=r"rewards\[1\]"):
        dynamic_filter([0.0, float("nan")], [0, 0])
    with pytest.raises(ValueError, match="groups differ in size"):
        dynamic_filter([0.0, 1.0, 1.0], [0, 0, 1])
    with pytest.raises(ValueError, match="max_groups is -1"):
        dynamic_filter([0.0, 1.0], [0, 0], max_groups=-1)
