"""Hugging Face directories: round trips, transformers as judge, one line for every fault."""

import json

import jax
import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

from atgrpo_jax.mesh import make_mesh
from atgrpo_jax.models import decoder, hf
from tests.test_decoder import config, random_params


@pytest.fixture
def saved(tmp_path):
    c = config()
    params = random_params(c)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "generation_config.json").write_text('{"eos_token_id": 3}')
    hf.save(tmp_path / "model", c, params, tmp_path / "source")
    return tmp_path / "model", c, params


def edit_config(path, **fields):
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def edit_tensors(path, change):
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")


def test_round_trip_is_exact(saved):
    path, c, params = saved
    got_config, got = hf.load(path)
    assert got_config == c
    assert got.keys() == params.keys()
    for name, value in params.items():
        np.testing.assert_array_equal(got[name], value)
    assert (path / "generation_config.json").exists()


@pytest.mark.parametrize("fields", [{}, {"tied_head": False, "rope_theta": 5e5}], ids=str)
def test_transformers_reads_what_save_wrote(tmp_path, fields):
    c = config(**fields)
    params = random_params(c)
    hf.save(tmp_path / "model", c, params, tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    tokens = np.random.default_rng(0).integers(0, 40, (2, 11))
    with torch.no_grad():
        expected = model(torch.tensor(tokens)).logits.numpy()
    hidden = decoder.forward(c, params, tokens, np.ones(tokens.shape, bool))
    got = np.asarray(decoder.logits(c, params, hidden))
    assert np.abs(got - expected).max() / np.abs(expected).max() < 1e-4


def test_reads_what_transformers_wrote_in_bfloat16(tmp_path):
    written = transformers.Qwen3Config(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=12,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        tie_word_embeddings=True, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = transformers.Qwen3ForCausalLM(written).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    c, params = hf.load(tmp_path)
    tokens = np.random.default_rng(0).integers(0, 40, (2, 11))
    # Read back, for model.float() would keep rotary frequencies rounded to bfloat16.
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = model(torch.tensor(tokens)).logits.numpy()
    hidden = decoder.forward(c, params, tokens, np.ones(tokens.shape, bool))
    np.testing.assert_allclose(decoder.logits(c, params, hidden), expected, atol=1e-4)
    assert all(value.dtype == np.float32 for value in params.values())


def test_loads_onto_the_mesh(saved):
    path, _, params = saved
    _, got = hf.load(path, make_mesh(2, 2, 2))
    kernel = got["layers.0.ffn.up.kernel"]
    assert len(kernel.sharding.device_set) == jax.device_count()
    assert kernel.addressable_shards[0].data.shape == (16, 24)
    np.testing.assert_array_equal(kernel, params["layers.0.ffn.up.kernel"])


def test_missing_tensor(saved):
    path, _, _ = saved
    edit_tensors(path, lambda t: t.pop("model.norm.weight"))
    with pytest.raises(ValueError, match=r"tensor 'model.norm.weight' is missing"):
        hf.load(path)


def test_extra_tensor(saved):
    path, _, _ = saved
    edit_tensors(path, lambda t: t.update({"model.layers.7.mlp.up_proj.weight": np.zeros(3)}))
    with pytest.raises(ValueError, match=r"'model.layers.7.mlp.up_proj.weight' is not part of"):
        hf.load(path)


def test_wrong_shape(saved):
    path, _, _ = saved
    edit_tensors(path, lambda t: t.update({"model.norm.weight": np.zeros(3, np.float32)}))
    with pytest.raises(ValueError, match=r"'model.norm.weight' gives norm.scale the shape \(3,\)"):
        hf.load(path)


def test_truncated_file(saved):
    path, _, _ = saved
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model.safetensors is truncated or damaged"):
        hf.load(path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "mamba"}, "model_type='mamba' is not supported"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "rope_type='yarn'"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported"),
        ({"logit_softcap": 30}, "field logit_softcap=30 is not known"),
        ({"use_sliding_window": True}, "use_sliding_window=True is not supported"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "only full_attention"),
    ],
)
def test_config_fields_are_honoured_or_refused_by_name(saved, fields, message):
    path, _, _ = saved
    edit_config(path, **fields)
    with pytest.raises(ValueError, match=message) as error:
        hf.load(path)
    assert "\n" not in str(error.value)


def test_directory_without_a_model(tmp_path):
    with pytest.raises(ValueError, match="it has no config.json"):
        hf.load(tmp_path)
