"""Hugging Face directories: config.json and safetensors in, and out again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from safetensors import SafetensorError, safe_open
from safetensors.flax import save_file

from atgrpo_jax.mesh import shardings
from atgrpo_jax.models import decoder
from atgrpo_jax.models.decoder import ModelConfig, Params

# Fields of config.json that change nothing here, or are honoured by reading.
_HARMLESS = {
    "architectures", "model_type", "vocab_size", "hidden_size", "intermediate_size",
    "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "rope_theta",
    "rope_parameters", "rms_norm_eps", "tie_word_embeddings", "attention_bias",
    "max_position_embeddings", "dtype", "torch_dtype", "transformers_version", "use_cache",
    "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id", "max_window_layers",
    "layer_types", "sliding_window", "use_sliding_window", "rope_scaling", "hidden_act",
    "attention_dropout", "_name_or_path",
}  # fmt: skip

_NEEDED = (
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "rms_norm_eps", "max_position_embeddings",
)  # fmt: skip

_REQUIRED_VALUES = {
    "hidden_act": ("silu",),
    "use_sliding_window": (False, None),
    "sliding_window": (None,),
    "rope_scaling": (None,),
    "attention_dropout": (0, 0.0, None),
}

_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
    "generation_config.json", "vocab.json", "merges.txt", "added_tokens.json",
)  # fmt: skip


def read_config(path: str | Path, compute_dtype: str = "float32") -> ModelConfig:
    """ModelConfig out of config.json; refuses by name what would be silently ignored.

    Raises ValueError naming the field, its value and the file.
    """
    file = Path(path) / "config.json"
    if not file.exists():
        raise ValueError(f"{path} is no model directory: it has no config.json")
    try:
        fields = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} is no JSON ({error}); download it again") from None
    missing = [name for name in _NEEDED if name not in fields]
    if missing:
        raise ValueError(f"{file} lacks {', '.join(missing)}; add what the model was trained with")
    if fields.get("model_type") != "qwen3":
        raise ValueError(
            f"{file}: model_type={fields.get('model_type')!r} is not supported; qwen3 is"
        )
    if fields.get("use_sliding_window") is False:
        fields["sliding_window"] = None
    for name, value in fields.items():
        if name not in _HARMLESS:
            raise ValueError(
                f"{file}: field {name}={value!r} is not known here and may not be ignored"
            )
        if name in _REQUIRED_VALUES and value not in _REQUIRED_VALUES[name]:
            raise ValueError(f"{file}: {name}={value!r} is not supported")
    if set(fields.get("layer_types") or ["full_attention"]) != {"full_attention"}:
        raise ValueError(f"{file}: layer_types={fields['layer_types']!r}: only full_attention is")
    heads = fields["num_attention_heads"]
    return ModelConfig(
        family="qwen3",
        vocab_size=fields["vocab_size"],
        width=fields["hidden_size"],
        layers=fields["num_hidden_layers"],
        heads=heads,
        kv_heads=fields.get("num_key_value_heads", heads),
        head_size=fields.get("head_dim") or fields["hidden_size"] // heads,
        ffn=fields["intermediate_size"],
        rope_theta=_rope_theta(fields, file),
        norm_eps=fields["rms_norm_eps"],
        tied_head=fields.get("tie_word_embeddings", False),
        qk_norm=True,
        attention_bias=fields.get("attention_bias", False),
        max_positions=fields["max_position_embeddings"],
        compute_dtype=compute_dtype,
    )


def _rope_theta(fields: dict[str, Any], file: Path) -> float:
    """The base of the rotary angles, from either of the two places where files keep it."""
    rope = fields.get("rope_parameters") or {}
    if rope.get("rope_type", "default") != "default":
        raise ValueError(f"{file}: rope_type={rope['rope_type']!r} is not supported; default is")
    theta = rope.get("rope_theta", fields.get("rope_theta"))
    if theta is None:
        raise ValueError(f"{file}: no rope_theta; add the base the model was trained with")
    return float(theta)


def tensor_name(name: str) -> str:
    """The published tensor name of one of our parameters."""
    whole = {
        "embed": "model.embed_tokens.weight",
        "norm.scale": "model.norm.weight",
        "head.kernel": "lm_head.weight",
    }
    if name in whole:
        return whole[name]
    for ours, theirs in (
        ("layers.", "model.layers."),
        ("attention_norm.scale", "input_layernorm.weight"),
        ("ffn_norm.scale", "post_attention_layernorm.weight"),
        ("_norm.scale", "_norm.weight"),
        (".attention.", ".self_attn."),
        (".ffn.", ".mlp."),
        (".kernel", "_proj.weight"),
        (".bias", "_proj.bias"),
    ):
        name = name.replace(ours, theirs)
    return name


def _is_transposed(name: str) -> bool:
    """Published matrices are [out, in]; our kernels are [in, out]."""
    return name.endswith(".kernel")


def load(
    path: str | Path,
    mesh: Mesh | None = None,
    param_dtype: str = "float32",
    compute_dtype: str = "float32",
) -> tuple[ModelConfig, Params]:
    """Reads a model, one tensor at a time, straight onto the mesh.

    Raises ValueError in one line for missing, extra or wrongly shaped tensors and broken files.
    """
    config = read_config(path, compute_dtype)
    shapes = decoder.shapes(config)
    wanted = {tensor_name(name): name for name in shapes}
    placed = None
    if mesh is not None:
        abstract = {
            name: jax.ShapeDtypeStruct(shape, param_dtype) for name, shape in shapes.items()
        }
        placed = shardings(mesh, abstract)
    params: Params = {}
    second_head = None
    for theirs, array, file in _tensors(Path(path)):
        if theirs == "lm_head.weight" and config.tied_head:
            second_head = array, file  # some writers store the tied head twice
            continue
        if theirs not in wanted:
            raise ValueError(f"{file}: tensor {theirs!r} is not part of a {config.family} model")
        name = wanted[theirs]
        if name in params:
            raise ValueError(f"{file}: tensor {theirs!r} is there twice; remove the stale file")
        array = array.T if _is_transposed(name) else array
        if array.shape != shapes[name]:
            raise ValueError(
                f"{file}: tensor {theirs!r} gives {name} the shape {array.shape}; "
                f"config.json says {shapes[name]}"
            )
        value = np.asarray(array).astype(param_dtype)
        params[name] = jnp.array(value) if placed is None else jax.device_put(value, placed[name])
    missing = [theirs for theirs, name in wanted.items() if name not in params]
    if missing:
        raise ValueError(f"{path}: tensor {missing[0]!r} is missing ({len(missing)} in all)")
    if second_head is not None:
        head = np.asarray(second_head[0]).astype(param_dtype)
        if not np.array_equal(head, np.asarray(params["embed"])):
            raise ValueError(
                f"{second_head[1]}: lm_head.weight differs from the embedding although config.json "
                "ties them; set tie_word_embeddings to false"
            )
    return config, params


def _tensors(path: Path) -> Iterator[tuple[str, Any, Path]]:
    """Every tensor of every safetensors file of a directory: name, numpy array, file."""
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{path} holds no *.safetensors file")
    for file in files:
        try:
            with safe_open(file, framework="numpy") as tensors:
                for name in tensors.keys():  # noqa: SIM118 (not a dict)
                    yield name, tensors.get_tensor(name), file
        except SafetensorError as error:
            raise ValueError(f"{file} is truncated or damaged: {error}") from None


def save(
    path: str | Path,
    config: ModelConfig,
    params: Params,
    source: str | Path,
    dtype: str = "float32",
) -> None:
    """Writes a directory that transformers loads; tokenizer files are copied from `source`.

    The directory appears whole; an older one is moved out of the way first.
    """
    path = Path(path)
    partial, old = path.with_name(path.name + ".partial"), path.with_name(path.name + ".old")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    partial.mkdir(parents=True)
    write(partial, config, params, dtype)
    for name in _TOKENIZER_FILES:
        if (Path(source) / name).exists():
            shutil.copyfile(Path(source) / name, partial / name)
    if path.exists():
        path.rename(old)
    partial.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def write(path: str | Path, config: ModelConfig, params: Params, dtype: str = "float32") -> None:
    """Writes config.json and model.safetensors into an existing directory."""
    tensors = {}
    for name, value in params.items():
        array = np.asarray(value)
        array = array.T if _is_transposed(name) else array
        tensors[tensor_name(name)] = jnp.asarray(np.ascontiguousarray(array)).astype(dtype)
    save_file(tensors, Path(path) / "model.safetensors", metadata={"format": "pt"})
    text = json.dumps(config_json(config, dtype), indent=2) + "\n"
    (Path(path) / "config.json").write_text(text)


def config_json(config: ModelConfig, dtype: str) -> dict[str, Any]:
    """config.json of a model, as transformers reads it."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_size,
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied_head,
        "attention_bias": config.attention_bias,
        "max_position_embeddings": config.max_positions,
        "dtype": dtype,
    }
