"""The caller's model is left as it was found, and what was put on it does not run."""

import copy

import pytest
import torch

from fnroll import Rollout, RolloutConfig, RolloutInterrupted, RolloutRecord, RolloutRequest, SamplingConfig
from fnroll.models import causal_lm
from fnroll.models.zoo import tiny_model
from tests.models.helpers import engine, request, roll


def snapshot(module):
    """All that a rollout might leave changed."""
    return {
        "training": {name: child.training for name, child in module.named_modules()},
        "checkpointing": {
            name: getattr(child, "gradient_checkpointing", None) for name, child in module.named_modules()
        },
        "config": copy.deepcopy(module.config.to_dict()),
        "attention": module.config._attn_implementation,
        "configs": {
            name: id(child.config) for name, child in module.named_modules() if hasattr(child, "config")
        },
        "generation": module.generation_config.to_dict(),
        "hooks": {
            name: [list(getattr(child, kind)) for kind in ("_forward_hooks", "_forward_pre_hooks")]
            for name, child in module.named_modules()
        },
        "attributes": {name: sorted(vars(child)) for name, child in module.named_modules()},
        "requires_grad": {name: p.requires_grad for name, p in module.named_parameters()},
        "identity": {name: id(p) for name, p in module.named_parameters()},
        "values": {name: p.detach().clone() for name, p in module.state_dict().items()},
        "gradients": {name: p.grad for name, p in module.named_parameters()},
        "rng": torch.get_rng_state(),
    }


def assert_same(before, after):
    assert before.keys() == after.keys()
    for name, value in before.items():
        if name == "rng":
            assert torch.equal(value, after[name]), name
        elif name == "values":
            assert all(torch.equal(tensor, after[name][key]) for key, tensor in value.items())
        else:
            assert value == after[name], name


def training_model(name):
    """A model in the middle of training, with everything set to what a rollout would not want."""
    module = tiny_model(name).train()
    next(
        child for child in module.modules() if isinstance(child, torch.nn.LayerNorm | torch.nn.Embedding)
    ).eval()
    # transformers renamed it in 5.2x.
    enable = getattr(module, "activation_checkpointing_enable", None) or module.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    module.config.use_cache = False
    module.generation_config.temperature = 0.3
    module.generation_config.do_sample = True
    next(module.parameters()).requires_grad_(False)
    seen = []
    module.register_forward_hook(lambda *_: seen.append("top"))
    next(iter(module.children())).register_forward_pre_hook(lambda *_: seen.append("inner"))
    return module, seen


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_model_is_left_as_it_was_found(name):
    """Case schedule-04. GPT-2 has dropout, which must not show in a rollout of a model in training mode."""
    module, seen = training_model(name)
    before = snapshot(module)
    batch = roll(module, n=2)
    assert_same(before, snapshot(module))
    assert seen == []

    def fail(index, record):
        raise KeyboardInterrupt

    with engine(module) as rollout, pytest.raises(RolloutInterrupted):
        rollout.generate(request(), SamplingConfig(), on_record=fail)
    assert_same(before, snapshot(module))

    with torch.enable_grad():
        ids = torch.tensor([batch[0].tokens])
        module(ids, labels=ids).loss.backward()
    gradients = [p.grad for p in module.parameters() if p.requires_grad]
    assert gradients and all(g is not None and g.isfinite().all() for g in gradients)
    assert "top" in seen and "inner" in seen
    assert batch.records == roll(tiny_model(name), n=2).records


def test_a_forward_wrapped_on_the_instance_is_not_run():
    """What wrappers such as accelerate's put on a module stays with the caller's module."""
    module, calls = tiny_model("llama"), []
    plain = causal_lm(tiny_model("llama"))
    old = module.model.forward
    module.model.forward = lambda *args, **kwargs: calls.append(1) or old(*args, **kwargs)
    model = causal_lm(module)
    request = RolloutRequest([RolloutRecord(prompt_ids=[5, 6])])
    one = Rollout(model, None, RolloutConfig(max_length=12)).generate(request)
    other = Rollout(plain, None, RolloutConfig(max_length=12)).generate(request)
    assert one == other and calls == []
