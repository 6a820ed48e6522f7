"""Weights that change under a live rollout: seen by the next call, however they were changed."""

import pytest
import torch

from fnroll import Rollout, RolloutConfig, RolloutRecord, RolloutRequest, SamplingConfig
from fnroll.models import causal_lm
from fnroll.models.zoo import tiny_model
from tests.models.helpers import engine, request, roll, same_tokens, worst_error


def moved(module, amount=0.3):
    """Other weights of the same shapes, by name."""
    generator = torch.Generator().manual_seed(5)
    return {
        name: value + amount * torch.randn(value.shape, generator=generator, dtype=value.dtype)
        if value.is_floating_point()
        else value.clone()
        for name, value in module.state_dict().items()
    }


def change_in_place(module, new):
    for name, parameter in module.named_parameters():
        parameter.copy_(new[name])


def change_data(module, new):
    for name, parameter in module.named_parameters():
        parameter.data = new[name]


def change_parameters(module, new):
    for name, _ in list(module.named_parameters()):
        path, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(path), leaf, torch.nn.Parameter(new[name]))


def change_by_loading(module, new):
    module.load_state_dict(new, assign=True)


def change_by_optimiser(module, new):
    optimiser = torch.optim.SGD(module.parameters(), lr=1.0)
    for name, parameter in module.named_parameters():
        parameter.grad = parameter.detach() - new[name]
    optimiser.step()


@pytest.mark.parametrize(
    "change", [change_in_place, change_data, change_parameters, change_by_loading, change_by_optimiser]
)
def test_new_weights_are_seen_by_the_next_call(change):
    """Case cache-01: the second rollout equals a fresh engine on the new weights, and not the first."""
    module = tiny_model("qwen3")
    with engine(module) as rollout:
        first = rollout.generate(request(n=2), SamplingConfig(), seed=1)
        change(module, moved(module))
        rollout.sync_weights(4)
        second = rollout.generate(request(n=2), SamplingConfig(), seed=1)
    with engine(module) as fresh:
        expected = fresh.generate(request(n=2), SamplingConfig(), seed=1)
    assert not same_tokens(first, second)
    assert same_tokens(second, expected)
    assert worst_error(module, second) <= 1e-5
    assert {version for record in first for version in record.weight_versions} == {-1, 0}
    assert {version for record in second for version in record.weight_versions} == {-1, 4}


def test_new_weights_are_seen_without_a_word():
    """`sync_weights` names a version; the weights themselves are taken up by every call."""
    module = tiny_model("llama")
    with engine(module) as rollout:
        rollout.generate(request(), SamplingConfig())
        change_parameters(module, moved(module))
        assert worst_error(module, rollout.generate(request(), SamplingConfig())) <= 1e-5


def test_replaced_parameters_are_named():
    module = tiny_model("llama")
    model = causal_lm(module)
    assert list(model.refresh()) == []
    module.model.norm.weight = torch.nn.Parameter(module.model.norm.weight + 1)
    assert list(model.refresh()) == ["model.norm.weight"]


def test_parameters_can_be_given_as_a_value():
    """`params` None means the module's own; a mapping of other weights gives the answers of those."""
    module = tiny_model("llama")
    new = moved(module)
    own = causal_lm(module)
    given = type(own)(**{**vars(own), "params": new})
    other = tiny_model("llama")
    other.load_state_dict(new)
    assert same_tokens(roll(given, n=2), roll(other, n=2))
    assert not same_tokens(roll(given, n=2), roll(own, n=2))


@pytest.mark.parametrize("change", ["dtype", "adapter"])
def test_a_model_that_changed_its_shape_is_refused_in_a_sentence(change):
    module = tiny_model("llama")
    rollout = Rollout(module, None, RolloutConfig(max_length=12))
    if change == "dtype":
        module.float()
    else:
        module.model.layers[0].mlp.add_module("adapter", torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="make a new Rollout for it"):
        rollout.generate(RolloutRequest([RolloutRecord(prompt_ids=[5])]))
