"""The parity ladder: every rung of the decoder against transformers' modules with the same weights.

Random tiny checkpoints of all families, written by transformers and read by hf.load; float32.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from atgrpo_jax.models import decoder, hf
from atgrpo_jax.models.decoder import _part
from atgrpo_jax.models.layers import Layer
from atgrpo_jax.models.rope import frequencies, rotate

forward = jax.jit(decoder.forward, static_argnums=0)
prefill = jax.jit(decoder.prefill, static_argnums=0)
extend = jax.jit(decoder.extend, static_argnums=0)
decode = jax.jit(decoder.decode, static_argnums=0)
COMMON = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5, "bos_token_id": 0, "eos_token_id": 1, "initializer_range": 0.2,
}  # fmt: skip
STRETCH = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
THETAS = (500.0, 10_000.0, 1_000_000.0)
FAMILIES = {
    "qwen3": (transformers.Qwen3Config, {"head_dim": 12, "tie_word_embeddings": True}),
    "qwen3 with biases": (
        transformers.Qwen3Config,
        {"head_dim": 8, "attention_bias": True, "num_key_value_heads": 4},
    ),
    "qwen2": (transformers.Qwen2Config, {"tie_word_embeddings": False}),
    "llama": (transformers.LlamaConfig, {"head_dim": 10, "tie_word_embeddings": False}),
    "llama with biases": (
        transformers.LlamaConfig,
        {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1},
    ),
    "llama-3 stretched": (transformers.LlamaConfig, {"stretch": STRETCH}),
}
LADDER = [
    *((family, theta) for family in ("qwen3", "llama-3 stretched") for theta in THETAS),
    *((family, 10_000.0) for family in FAMILIES if family not in ("qwen3", "llama-3 stretched")),
]


@pytest.fixture(scope="module", params=LADDER, ids=lambda case: f"{case[0]}, theta {case[1]:g}")
def pair(request, tmp_path_factory):
    """transformers' model, and ours of the file it wrote."""
    family, theta = request.param
    kind, fields = FAMILIES[family]
    fields = dict(fields)
    rope = {"rope_theta": theta, **fields.pop("stretch", {"rope_type": "default"})}
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        kind(**COMMON | fields, rope_parameters=rope)
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # norms and biases away from one and zero
                parameter += 0.3 * torch.randn_like(parameter)
    path = tmp_path_factory.mktemp("model")
    model.save_pretrained(path)
    return model, *hf.load(path), path


def close(got, expected, tolerance=1e-4):
    expected = expected.detach().numpy()
    gap = np.abs(np.asarray(got) - expected).max() / np.abs(expected).max()
    assert gap < tolerance, f"off by {gap:.2e} of the largest"


def states(config, length=9):
    return np.random.default_rng(0).normal(size=(2, length, config.width)).astype(np.float32)


def tokens(config, length=40):
    return np.random.default_rng(1).integers(0, config.vocab_size, (2, length))


def our_layer(config, params, i=1):
    part = _part(Layer, config)
    return part.module({name: params[f"layers.{i}.{name}"] for name in part.paths})


def test_norm(pair):
    model, config, params, _ = pair
    x = states(config)
    close(our_layer(config, params).ffn_norm(jnp.asarray(x)),
          model.model.layers[1].post_attention_layernorm(torch.tensor(x)), 1e-5)  # fmt: skip


def test_rope(pair):
    model, config, _, _ = pair
    x = np.random.default_rng(0).normal(size=(1, 200, 4, config.head_size)).astype(np.float32)
    positions = np.arange(200)[None]
    cos, sin = model.model.rotary_emb(torch.tensor(x), torch.tensor(positions))
    turned = torch.tensor(x) * cos[:, :, None] + sin[:, :, None] * torch.cat(
        (
            -torch.tensor(x)[..., config.head_size // 2 :],
            torch.tensor(x)[..., : config.head_size // 2],
        ),
        dim=-1,
    )
    frequency = frequencies(config.head_size, config.rope_theta, config.rope_scaling)
    close(rotate(jnp.asarray(x), jnp.asarray(positions), frequency), turned)


def test_feed_forward(pair):
    model, config, params, _ = pair
    x = states(config)
    close(our_layer(config, params).ffn(jnp.asarray(x)), model.model.layers[1].mlp(torch.tensor(x)))


def test_attention_of_a_layer(pair):
    model, config, params, _ = pair
    x, positions = states(config), np.broadcast_to(np.arange(9), (2, 9))
    rotary = model.model.rotary_emb(torch.tensor(x), torch.tensor(positions))
    causal = torch.full((9, 9), float("-inf")).triu(1)[None, None]
    expected, _ = model.model.layers[1].self_attn(
        torch.tensor(x), position_embeddings=rotary, attention_mask=causal
    )
    layer = our_layer(config, params)
    q, k, v = layer.attention.project(jnp.asarray(x)[:, None], jnp.asarray(positions)[:, None])
    out = decoder.attention(q, k, v, decoder._causal(9))
    close(layer.attention.o(out.reshape(2, 9, -1)), expected)


def test_logits_with_padding_on_either_side(pair):
    model, config, params, _ = pair
    ids = tokens(config)
    for mask in (np.arange(40) < [[40], [29]], np.arange(40) >= [[0], [11]]):
        positions = np.maximum(mask.cumsum(1) - 1, 0)
        with torch.no_grad():
            expected = model(
                torch.tensor(ids), attention_mask=torch.tensor(mask).long(),
                position_ids=torch.tensor(positions),
            ).logits  # fmt: skip
        got = decoder.logits(config, params, forward(config, params, ids, mask))
        close(np.asarray(got)[mask], expected[torch.tensor(mask)])


def test_cached_greedy_decoding(pair):
    model, config, params, _ = pair
    ids = tokens(config, 7)
    with torch.no_grad():
        expected = model.generate(
            torch.tensor(ids), max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
        ).numpy()[:, 7:]
    last, prefix = prefill(config, params, ids, np.ones(ids.shape, bool))
    cache = decoder.empty_cache(config, 2, 1, 12)
    hidden, got = last[:, None], []
    for step in range(12):
        token = decoder.logits(config, params, hidden).argmax(-1)
        got.append(token)
        hidden, cache = decode(config, params, prefix, cache, token, jnp.int32(step))
    np.testing.assert_array_equal(np.concatenate(got, 1), expected)


def test_export_is_what_transformers_loads(pair, tmp_path):
    model, config, params, _ = pair
    hf.save(tmp_path / "out", config, params, tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    ids = torch.tensor(tokens(config))
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, model(ids).logits, rtol=0, atol=0)
    assert hf.load(tmp_path / "out")[0] == config


def test_stacked_layers_compute_the_same(pair):
    _, config, params, path = pair
    stacked_config, stacked = hf.load(path, scan=True, remat="dots")
    assert {k: v.shape for k, v in stacked.items()} == decoder.shapes(stacked_config)
    again = decoder.stack_layers(stacked_config, params)
    assert all((stacked[name] == again[name]).all() for name in again)
    ids = tokens(config, 7)
    mask = np.ones(ids.shape, bool)
    last, prefix = prefill(config, params, ids, mask)
    last2, prefix2 = prefill(stacked_config, stacked, ids, mask)
    np.testing.assert_allclose(last2, last, rtol=1e-5, atol=1e-5)
    own = np.random.default_rng(2).integers(0, 61, (2, 3, 4))
    whole = extend(config, params, prefix, jnp.asarray(own))
    np.testing.assert_allclose(
        extend(stacked_config, stacked, prefix2, jnp.asarray(own)), whole,
        rtol=1e-5, atol=1e-5,
    )  # fmt: skip
    cache = decoder.empty_cache(stacked_config, 2, 3, 4)
    for step in range(4):
        hidden, cache = decode(
            stacked_config, stacked, prefix2, cache, jnp.asarray(own[..., step]), jnp.int32(step)
        )
        np.testing.assert_allclose(hidden, whole[:, :, step], rtol=1e-5, atol=1e-5)


NUMERIC = {
    "rms_norm_eps": 0.1, "rope_theta": 77.0, "factor": 2.0, "low_freq_factor": 0.5,
    "high_freq_factor": 9.0, "original_max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize("name", NUMERIC)
def test_changing_a_numeric_field_changes_the_logits(tmp_path, name):
    torch.manual_seed(0)
    rope = {"rope_theta": 500.0, **STRETCH}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**COMMON, rope_parameters=rope))
    model.save_pretrained(tmp_path)
    config, params = hf.load(tmp_path)
    ids = tokens(config, 200)
    before = forward(config, params, ids, np.ones(ids.shape, bool))
    file = tmp_path / "config.json"
    fields = json.loads(file.read_text())
    (fields["rope_parameters"] if name != "rms_norm_eps" else fields)[name] = NUMERIC[name]
    file.write_text(json.dumps(fields))
    config, params = hf.load(tmp_path)
    after = forward(config, params, ids, np.ones(ids.shape, bool))
    assert np.abs(before - after).max() > 1e-3
