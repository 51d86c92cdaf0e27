"""The decoder against transformers' Qwen3 and against itself along its three paths."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from atgrpo_jax.models import decoder
from atgrpo_jax.models.decoder import ModelConfig


def config(**fields):
    values = {
        "family": "qwen3",
        "vocab_size": 40,
        "width": 32,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "head_size": 12,
        "ffn": 48,
        "rope_theta": 10000.0,
        "norm_eps": 1e-6,
        "tied_head": True,
        "qk_norm": True,
        "max_positions": 64,
    }
    return ModelConfig(**{**values, **fields})


def random_params(c, seed=0):
    """Norm scales and biases away from their starting values, so that each one matters."""
    params = decoder.init_params(c, jax.random.key(seed))
    keys = jax.random.split(jax.random.key(seed + 1), len(params))
    return {
        name: value * 4 if value.ndim > 1 else value + 0.3 * jax.random.normal(key, value.shape)
        for (name, value), key in zip(params.items(), keys, strict=True)
    }


def reference(c, params):
    """transformers' model with the same weights."""
    model = transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(
            vocab_size=c.vocab_size,
            hidden_size=c.width,
            intermediate_size=c.ffn,
            num_hidden_layers=c.layers,
            num_attention_heads=c.heads,
            num_key_value_heads=c.kv_heads,
            head_dim=c.head_size,
            rope_theta=c.rope_theta,
            rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
            rms_norm_eps=c.norm_eps,
            tie_word_embeddings=c.tied_head,
            attention_bias=c.output_bias,
            max_position_embeddings=c.max_positions,
        )
    ).eval()
    renames = {
        "embed": "model.embed_tokens.weight",
        "norm.scale": "model.norm.weight",
        "head.kernel": "lm_head.weight",
    }
    parts = [
        ("layers.", "model.layers."),
        ("attention_norm.scale", "input_layernorm.weight"),
        ("ffn_norm.scale", "post_attention_layernorm.weight"),
        ("q_norm.scale", "q_norm.weight"),
        ("k_norm.scale", "k_norm.weight"),
        ("attention.", "self_attn."),
        ("ffn.", "mlp."),
        (".kernel", "_proj.weight"),
        (".bias", "_proj.bias"),
    ]
    state = {}
    for name, value in params.items():
        array = np.asarray(value)
        target = renames.get(name)
        if target is None:
            target = name
            for old, new in parts:
                target = target.replace(old, new)
        state[target] = torch.tensor(array.T if name.endswith("kernel") else array)
    missing, extra = model.load_state_dict(state, strict=False)
    assert not extra
    assert set(missing) <= ({"lm_head.weight"} if c.tied_head else set())
    model.tie_weights()
    return model


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"rope_theta": 1e6},
        {"rope_theta": 500.0, "tied_head": False},
        {"qkv_bias": True, "output_bias": True, "kv_heads": 4, "head_size": 8},
        {"norm_eps": 1e-2, "kv_heads": 1},
    ],
    ids=str,
)
def test_logits_equal_transformers(fields):
    c = config(**fields)
    params = random_params(c)
    tokens = np.random.default_rng(0).integers(0, 40, (3, 17))
    with torch.no_grad():
        expected = reference(c, params)(torch.tensor(tokens)).logits.numpy()
    hidden = decoder.forward(c, params, tokens, np.ones(tokens.shape, bool))
    got = np.asarray(decoder.logits(c, params, hidden))
    assert np.abs(got - expected).max() / np.abs(expected).max() < 1e-4


def split_at(c, params, tokens, cut, padding):
    """The prefix of `tokens[:, :cut]` with padding behind it."""
    prompt = np.pad(tokens[:, :cut], ((0, 0), (0, padding)), constant_values=7)
    mask = np.arange(cut + padding) < np.full((len(tokens), 1), cut)
    return decoder.prefill(c, params, prompt, mask)


def test_prefill_extend_and_decode_equal_one_forward_pass():
    c = config()
    params = random_params(c)
    tokens = np.random.default_rng(0).integers(0, 40, (3, 12))
    whole = decoder.forward(c, params, tokens, np.ones(tokens.shape, bool))
    for padding in (0, 5):
        last, prefix = split_at(c, params, tokens, 5, padding)
        np.testing.assert_allclose(last, whole[:, 4], atol=2e-5)
        extended = decoder.extend(c, params, prefix, jnp.asarray(tokens[:, None, 5:]))
        np.testing.assert_allclose(extended[:, 0], whole[:, 5:], atol=2e-5)
        cache = decoder.empty_cache(c, 3, 1, 7)
        for step in range(7):
            token = jnp.asarray(tokens[:, 5 + step, None])
            hidden, cache = decoder.decode(c, params, prefix, cache, token, jnp.int32(step))
            np.testing.assert_allclose(hidden[:, 0], whole[:, 5 + step], atol=2e-5)


def test_members_do_not_see_one_another_nor_the_future():
    c = config()
    params = random_params(c)
    random = np.random.default_rng(0)
    _, prefix = split_at(c, params, random.integers(0, 40, (2, 5)), 5, 3)
    own = random.integers(0, 40, (2, 3, 6))
    changed = own.copy()
    changed[:, 1, 3:] = (changed[:, 1, 3:] + 1) % 40
    before = decoder.extend(c, params, prefix, jnp.asarray(own))
    after = decoder.extend(c, params, prefix, jnp.asarray(changed))
    np.testing.assert_array_equal(before[:, [0, 2]], after[:, [0, 2]])
    np.testing.assert_array_equal(before[:, 1, :3], after[:, 1, :3])
    assert (np.abs(before[:, 1, 3:] - after[:, 1, 3:]).max(-1) > 1e-3).all()


def test_padding_behind_a_sequence_changes_nothing():
    c = config()
    params = random_params(c)
    tokens = np.random.default_rng(0).integers(0, 40, (2, 9))
    alone = decoder.forward(c, params, tokens, np.ones((2, 9), bool))
    padded = np.pad(tokens, ((0, 0), (0, 6)), constant_values=3)
    mask = np.broadcast_to(np.arange(15) < 9, (2, 15))
    np.testing.assert_allclose(decoder.forward(c, params, padded, mask)[:, :9], alone, atol=2e-5)


@pytest.mark.parametrize("field", [{"rope_theta": 500.0}, {"norm_eps": 1e-1}], ids=str)
def test_numeric_fields_change_the_result(field):
    params = random_params(config())
    tokens = np.random.default_rng(0).integers(0, 40, (2, 9))
    mask = np.ones((2, 9), bool)
    left = decoder.forward(config(), params, tokens, mask)
    assert np.abs(left - decoder.forward(config(**field), params, tokens, mask)).max() > 1e-3


@pytest.mark.parametrize("field", [{"qk_norm": False}, {"tied_head": False}], ids=str)
def test_parameters_of_another_structure_are_refused(field):
    params = random_params(config())
    with pytest.raises(ValueError, match="is missing|is not part of it"):
        decoder.forward(config(**field), params, np.zeros((1, 2), int), np.ones((1, 2), bool))


def test_branches_of_prompts_of_several_lengths_equal_each_sequence_alone():
    c = config()
    params = random_params(c)
    random = np.random.default_rng(0)
    lengths, members, own = (5, 8, 2), 3, 4
    prompt = random.integers(0, 40, (3, 8))
    response = random.integers(0, 40, (3, members, own))
    mask = np.arange(8) < np.array(lengths)[:, None]
    _, prefix = jax.jit(decoder.prefill, static_argnums=0)(c, params, prompt, mask)
    extended = jax.jit(decoder.extend, static_argnums=0)(c, params, prefix, response)
    decode = jax.jit(decoder.decode, static_argnums=0)
    forward = jax.jit(decoder.forward, static_argnums=0)
    cache = decoder.empty_cache(c, 3, members, own)
    decoded = []
    for step in range(own):
        hidden, cache = decode(c, params, prefix, cache, response[:, :, step], jnp.int32(step))
        decoded.append(hidden)
    for b, length in enumerate(lengths):
        for k in range(members):
            alone = np.concatenate([prompt[b, :length], response[b, k]])[None]
            whole = forward(c, params, alone, np.ones(alone.shape, bool))[0, length:]
            np.testing.assert_allclose(extended[b, k], whole, atol=2e-5)
            np.testing.assert_allclose(np.stack([h[b, k] for h in decoded]), whole, atol=2e-5)


def test_bfloat16_compute_is_close_and_keeps_float32_logits():
    """Hidden states round to 8 bits: off by some per cent of the logits' spread, never more."""
    params = random_params(config())
    tokens, mask = np.random.default_rng(0).integers(0, 40, (3, 17)), np.ones((3, 17), bool)
    logits = {}
    for dtype in ("float32", "bfloat16"):
        c = config(compute_dtype=dtype)
        hidden = jax.jit(decoder.forward, static_argnums=0)(c, params, tokens, mask)
        assert hidden.dtype == dtype
        logits[dtype] = decoder.logits(c, params, hidden)
    assert logits["bfloat16"].dtype == jnp.float32
    gap = np.abs(logits["bfloat16"] - logits["float32"]) / np.std(logits["float32"])
    assert 0 < gap.mean() < 0.03
    assert gap.max() < 0.3
