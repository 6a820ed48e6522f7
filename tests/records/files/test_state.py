"""A saved state is the state, bit for bit, between any two steps; anything else is refused by name."""

import dataclasses
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fnroll
from fnroll.core import steps
from fnroll.core.tree import leaf_names, replace, tree_equal, tree_leaves
from tests.core.helpers import prefill_all, running, toy_state


def step(model, state):
    state = prefill_all(model, steps.admit(state)[0])
    return steps.decode_step(model.params, state, model=model.fn, window=16)[0]


def states():
    """Draw a state in the middle of a rollout, with the options that give it its parts."""
    options = st.fixed_dictionaries(
        {"slots": st.sampled_from([0, 2]), "support_size": st.sampled_from([0, 3]), "rows": st.integers(1, 3)}
    )
    return st.tuples(options, st.integers(0, 9))


@settings(max_examples=60)
@given(states(), st.lists(st.booleans(), min_size=12, max_size=12))
def test_saving_and_loading_between_any_two_steps_changes_nothing(tmp_path, drawn, saves):
    options, count = drawn
    model, state = toy_state(**options)
    plain = state
    for number in range(count):
        plain, state = step(model, plain), step(model, state)
        if saves[number]:
            fnroll.save(state, tmp_path / "state.safetensors", model=model)
            state = fnroll.load(tmp_path / "state.safetensors", model=model, like=plain)
        assert tree_equal(state, plain)
        assert [leaf.dtype for leaf in tree_leaves(state)] == [leaf.dtype for leaf in tree_leaves(plain)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_round_trip_is_bitwise_in_every_dtype(tmp_path, dtype):
    _, state = running(slots=1)
    noise = torch.randn(state.cache.keys[0].shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    noise[0, 0], noise[0, 1] = -0.0, torch.nan
    state = replace(
        state, cache=replace(state.cache, keys=(noise,), values=(noise,))
    )  # one memory, two leaves
    fnroll.save(state, tmp_path / "s")
    again = fnroll.load(tmp_path / "s")
    bits = torch.int64 if dtype == torch.float64 else torch.int32 if dtype == torch.float32 else torch.int16
    for leaf, other in zip(tree_leaves(state), tree_leaves(again), strict=True):
        bit = bits if leaf.dtype == dtype else leaf.dtype
        assert leaf.dtype == other.dtype and torch.equal(leaf.view(bit), other.view(bit))
    assert again.cache.keys[0].data_ptr() != again.cache.values[0].data_ptr()
    assert leaf_names(state) == leaf_names(again)


def test_a_loaded_state_is_a_value_that_steps_take_and_donate(tmp_path):
    model, state = running()
    fnroll.save(state, tmp_path / "s", model=model)
    one, two = fnroll.load(tmp_path / "s"), fnroll.load(tmp_path / "s")
    assert tree_equal(step(model, one), step(model, two)) and tree_equal(one, two)


def test_another_model_is_refused_by_what_differs(tmp_path):
    path = tmp_path / "s"
    model, state = running()
    fnroll.save(state, path, model=model)
    for change, message in {
        "name": ("other", "is of another model: name is 'toy', here 'other'"),
        "vocab_size": (14, "vocab_size is 13, here 14"),
        "cache_shapes": (((2, 1, 1),), r"cache_shapes is \[\[1, 1, 1\]\], here \[\[2, 1, 1\]\]"),
        "dtype": (torch.float32, "dtype is 'torch.float64', here 'torch.float32'"),
    }.items():
        other = dataclasses.replace(model, **{change: message[0]})
        with pytest.raises(ValueError, match=message[1]):
            fnroll.load(path, model=other)
    fnroll.save(state, path)
    with pytest.raises(ValueError, match="does not say of which model it is; load it without model="):
        fnroll.load(path, model=model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 3}, r"rows.record is \(\[2\], 'torch.int64'\), here \(\[3\], 'torch.int64'\)"),
        ({"max_length": 20}, r"records.tokens is \(\[5, 16\], .* here \(\[5, 20\]"),
        ({"lines": 5}, r"records.tokens is \(\[5, 16\], .* here \(\[6, 16\]"),
        ({"slots": 1}, r"pool.keys\[0\] is None, here"),
        ({"support_size": 2}, "records.support is None, here"),
        ({"stop_ids": (3,)}, r"has stop ids \[0\], here \[3\]"),
    ],
)
def test_another_shape_is_refused_by_name(tmp_path, options, message):
    fnroll.save(running()[1], tmp_path / "s")
    with pytest.raises(ValueError, match=message):
        fnroll.load(tmp_path / "s", like=toy_state(**options)[1])


def test_other_sampling_parameters_are_refused_unless_asked(tmp_path):
    path, (_, state) = tmp_path / "s", running()
    fnroll.save(state, path)
    cold = replace(
        state.sampling,
        temperature=torch.tensor([1.0, 0.5, 1.0, 1.0, 1.0]),
        top_k=torch.full_like(state.sampling.top_k, 3),
        max_top_k=4,
    )
    like = replace(state, sampling=cold)
    with pytest.raises(
        ValueError, match=r"temperature 1\.0 on line 1, here it is 0.5; give the same, or say so"
    ):
        fnroll.load(path, like=like)
    with pytest.raises(ValueError, match="drawn with top_k 0 on line 0, here it is 3"):
        fnroll.load(path, like=like, changed=("temperature",))
    assert tree_equal(fnroll.load(path, like=like, changed=("temperature", "top_k")), like)
    with pytest.raises(ValueError, match=r"load\.changed is 'temprature'; it must be one of 'temperature'"):
        fnroll.load(path, like=like, changed=("temprature",))


@settings(max_examples=100)
@given(st.data())
def test_a_damaged_or_half_written_state_is_refused(tmp_path, data):
    path = tmp_path / "s"
    if not path.exists():
        model, state = running(slots=1)
        fnroll.save(state, path, model=model)
        (tmp_path / "whole").write_bytes(path.read_bytes())
    whole = (tmp_path / "whole").read_bytes()
    if data.draw(st.booleans()):
        damaged = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        place = data.draw(st.integers(0, min(len(whole) - 1, 5000)) | st.integers(0, len(whole) - 1))
        damaged = whole[:place] + bytes([whole[place] ^ data.draw(st.integers(1, 255))]) + whole[place + 1 :]
    path.write_bytes(damaged)
    try:  # a space of JSON may become another one
        assert tree_equal(fnroll.load(path), running(slots=1)[1]) and len(damaged) == len(whole)
    except ValueError as error:
        assert str(path) in str(error)


def test_a_file_of_another_kind_or_version_is_refused(tmp_path):
    path, (_, state) = tmp_path / "s", running()
    fnroll.save(state, path)
    data = path.read_bytes()
    path.write_bytes(data.replace(rb"\"version\": 1", rb"\"version\": 2"))
    with pytest.raises(ValueError, match="has version 2; this fnroll reads 1"):
        fnroll.load(path)
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match="holds tensors, but no state of a rollout"):
        fnroll.load(path)
    path.write_text(json.dumps({"a": 1}))
    with pytest.raises(ValueError, match="is no saved state, or damaged or half written"):
        fnroll.load(path)
    with pytest.raises(FileNotFoundError):
        fnroll.load(tmp_path / "none")


def test_a_failed_save_leaves_the_one_before(tmp_path, monkeypatch):
    path, (model, state) = tmp_path / "s", running()
    fnroll.save(state, path)
    monkeypatch.setattr("fnroll.records.files.atomic.os.fsync", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fnroll.save(step(model, state), path)
    assert tree_equal(fnroll.load(path), state) and [file.name for file in tmp_path.iterdir()] == ["s"]
