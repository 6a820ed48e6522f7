"""A twin shares every tensor with its model and nothing else that can be set."""

import pytest
import torch
from torch import nn

from fnroll.models.twin import Twin
from fnroll.models.zoo import tiny_model


class Layer(nn.Module):
    def __init__(self, weight=None):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        if weight is not None:
            self.linear.weight = weight
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("shift", torch.ones(3))
        self.register_buffer("cast", None)
        self.gradient_checkpointing = True

    def forward(self, x):
        return self.dropout(self.linear(x)) + self.shift


class Net(nn.Module):
    """Two layers that share a weight, and one that occurs twice."""

    def __init__(self):
        super().__init__()
        first = Layer()
        self.layers = nn.ModuleList([first, Layer(first.linear.weight), first])
        self.missing = None

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture
def net():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Net().train()


def test_all_tensors_are_the_model_s_own(net):
    twin = Twin(net).module
    assert type(twin) is Net and twin is not net
    ours, theirs = dict(twin.named_parameters()), dict(net.named_parameters())
    assert ours.keys() == theirs.keys() and all(ours[name] is theirs[name] for name in ours)
    assert twin.layers[0].shift is net.layers[0].shift
    assert twin.layers[0] is twin.layers[2] and twin.layers[0] is not net.layers[0]
    assert [name for name, _ in twin.named_modules()] == [name for name, _ in net.named_modules()]


def test_a_twin_is_in_evaluation_mode_without_checkpointing_and_the_model_stays(net):
    twin = Twin(net).module
    assert not any(module.training for module in twin.modules())
    assert not any(layer.gradient_checkpointing for layer in twin.layers)
    assert all(module.training for module in net.modules())
    assert all(layer.gradient_checkpointing for layer in net.layers)
    x = torch.ones(1, 3)
    expected = net.eval()(x)
    net.train()
    assert torch.equal(twin(x), expected)


def test_hooks_stay_with_the_model(net):
    seen = []
    net.layers[0].register_forward_hook(lambda *_: seen.append("after"))
    net.layers[0].linear.register_forward_pre_hook(lambda *_: seen.append("before"))
    twin = Twin(net).module
    twin(torch.ones(1, 3))
    assert seen == []
    twin.register_forward_hook(lambda *_: seen.append("twin"))
    net(torch.ones(1, 3))
    assert seen == ["before", "after"] * 2


def test_what_is_set_on_a_twin_does_not_show(net):
    twin = Twin(net).module
    twin.layers[0].flag = 1
    twin.layers[0].extra = nn.Linear(1, 1)
    twin.layers[0].register_buffer("more", torch.ones(1))
    assert not hasattr(net.layers[0], "flag")
    assert "extra" not in net.layers[0]._modules and "more" not in net.layers[0]._buffers


def test_configurations_are_copied_once_and_stay_shared_within_the_twin():
    model = tiny_model("qwen3")
    twin = Twin(model).module
    configs = {id(m.config) for m in twin.modules() if hasattr(m, "config")}
    assert len(configs) == len({id(m.config) for m in model.modules() if hasattr(m, "config")})
    twin.config._attn_implementation = "eager"
    twin.config.use_cache = False
    assert model.config._attn_implementation != "eager" and model.config.use_cache is True
    assert twin.model.layers[0].self_attn.config._attn_implementation == "eager"


def test_updates_in_place_are_seen_at_once(net):
    twin = Twin(net)
    net.layers[0].linear.weight.mul_(2)
    assert torch.equal(twin.module.layers[0].linear.weight, net.layers[0].linear.weight)
    assert twin.relink() == []


def test_replaced_tensors_are_taken_up_and_named(net):
    mirror = Twin(net)
    twin = mirror.module
    net.layers[1].linear.bias = nn.Parameter(torch.zeros(3))
    net.layers[0].shift = torch.zeros(3)
    assert sorted(mirror.relink()) == ["layers.0.shift", "layers.1.linear.bias"]
    assert twin.layers[1].linear.bias is net.layers[1].linear.bias
    assert twin.layers[2].shift is net.layers[0].shift
    assert mirror.relink() == []
