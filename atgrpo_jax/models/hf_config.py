"""config.json of a Hugging Face model: each field that matters is honoured or refused by name."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from atgrpo_jax.models.layers import ModelConfig
from atgrpo_jax.models.rope import RopeScaling

# Fields that every family may have and that change nothing here, or are honoured below.
_KNOWN = {
    "architectures", "model_type", "vocab_size", "hidden_size", "intermediate_size",
    "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "rope_theta",
    "rope_parameters", "rope_scaling", "rms_norm_eps", "tie_word_embeddings",
    "max_position_embeddings", "dtype", "torch_dtype", "transformers_version", "use_cache",
    "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id", "hidden_act",
    "attention_dropout", "_name_or_path", "_model_name_or_path", "unk_token_id",
}  # fmt: skip
_NEEDED = (
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "rms_norm_eps", "max_position_embeddings",
)  # fmt: skip
_REQUIRED_VALUES: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "use_sliding_window": (False, None),
    "sliding_window": (None,),
    "attention_dropout": (0, 0.0, None),
    "pretraining_tp": (1, None),
    "rope_interleaved": (False, None),
}
_WINDOWS = {"max_window_layers", "layer_types", "sliding_window", "use_sliding_window"}
_DEFAULT_THETA = 10000.0  # of transformers, for all three families


@dataclass(frozen=True)
class Family:
    """What a model_type means beyond the fields it shares with the others."""

    architecture: str
    fields: frozenset[str]  # its own fields of config.json
    qk_norm: bool = False
    qkv_bias: bool | None = None  # None: attention_bias says it, for the output projection too


FAMILIES = {
    "qwen3": Family("Qwen3ForCausalLM", frozenset({"attention_bias", *_WINDOWS}), qk_norm=True),
    "qwen2": Family("Qwen2ForCausalLM", frozenset(_WINDOWS), qkv_bias=True),
    "llama": Family(
        "LlamaForCausalLM",
        frozenset(
            {"attention_bias", "mlp_bias", "pretraining_tp", "rope_interleaved", "is_llama_config"}
        ),
    ),
}


def read_config(path: str | Path, **computing: Any) -> ModelConfig:
    """ModelConfig out of a directory's config.json; `computing`: compute_dtype, remat, scan.

    Raises ValueError naming the field, its value and the file.
    """
    file = Path(path) / "config.json"
    if not file.exists():
        raise ValueError(f"{path} is no model directory: it has no config.json")
    try:
        fields = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} is no JSON ({error}); download it again") from None
    return parse_config(fields, str(file), **computing)


def parse_config(fields: dict[str, Any], file: str, **computing: Any) -> ModelConfig:
    """As read_config, of the fields; `file` is what errors call their source."""
    fields = dict(fields)
    missing = [name for name in _NEEDED if name not in fields]
    if missing:
        raise ValueError(f"{file} lacks {', '.join(missing)}; add what the model was trained with")
    family = FAMILIES.get(fields["model_type"])
    if family is None:
        raise ValueError(
            f"{file}: model_type={fields['model_type']!r} is not supported; "
            f"{', '.join(FAMILIES)} are"
        )
    _refuse(fields, family, file)
    theta, scaling = _rope(fields, file)
    heads, bias = fields["num_attention_heads"], bool(fields.get("attention_bias", False))
    return ModelConfig(
        family=fields["model_type"],
        vocab_size=fields["vocab_size"],
        width=fields["hidden_size"],
        layers=fields["num_hidden_layers"],
        heads=heads,
        kv_heads=fields.get("num_key_value_heads") or heads,
        head_size=fields.get("head_dim") or fields["hidden_size"] // heads,
        ffn=fields["intermediate_size"],
        rope_theta=theta,
        rope_scaling=scaling,
        norm_eps=fields["rms_norm_eps"],
        tied_head=fields.get("tie_word_embeddings", False),
        qk_norm=family.qk_norm,
        qkv_bias=bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=bias,
        ffn_bias=bool(fields.get("mlp_bias", False)),
        max_positions=fields["max_position_embeddings"],
        **computing,
    )


def _refuse(fields: dict[str, Any], family: Family, file: str) -> None:
    """Raises ValueError for the first field that would have to be ignored."""
    if fields.get("use_sliding_window") is False:
        fields["sliding_window"] = None
    for name, value in fields.items():
        if name not in _KNOWN | family.fields:
            raise ValueError(
                f"{file}: field {name}={value!r} is not known here and may not be ignored"
            )
        if name in _REQUIRED_VALUES and value not in _REQUIRED_VALUES[name]:
            raise ValueError(f"{file}: {name}={value!r} is not supported")
    if set(fields.get("layer_types") or ["full_attention"]) != {"full_attention"}:
        raise ValueError(f"{file}: layer_types={fields['layer_types']!r}: only full_attention is")


def _rope(fields: dict[str, Any], file: str) -> tuple[float, RopeScaling | None]:
    """Base and stretch of the rotary angles, from any of the places where files keep them."""
    rope = {**(fields.get("rope_scaling") or {}), **(fields.get("rope_parameters") or {})}
    kind = rope.pop("rope_type", rope.pop("type", "default"))
    theta = rope.pop("rope_theta", fields.get("rope_theta") or _DEFAULT_THETA)
    if kind not in ("default", "llama3"):
        raise ValueError(f"{file}: rope_type={kind!r} is not supported; default and llama3 are")
    names = set(RopeScaling.__dataclass_fields__) if kind == "llama3" else set()
    if odd := sorted(rope.keys() ^ names):
        fault = "is missing" if odd[0] in names else "is not known here and may not be ignored"
        raise ValueError(f"{file}: field {odd[0]} of rope_type={kind!r} {fault}")
    return float(theta), RopeScaling(**rope) if kind == "llama3" else None


def config_json(config: ModelConfig, dtype: str) -> dict[str, Any]:
    """config.json of a model, as transformers reads it."""
    family = FAMILIES[config.family]
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_scaling is not None:
        rope |= {"rope_type": "llama3"} | asdict(config.rope_scaling)
    fields = {
        "architectures": [family.architecture],
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_size,
        "hidden_act": "silu",
        "rope_parameters": rope,
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied_head,
        "max_position_embeddings": config.max_positions,
        "dtype": dtype,
    }
    if config.rope_scaling is not None:
        # Servers of before transformers 5 read it here.
        fields["rope_scaling"] = {name: rope[name] for name in rope if name != "rope_theta"}
    if "attention_bias" in family.fields:
        fields["attention_bias"] = config.output_bias
    if "mlp_bias" in family.fields:
        fields["mlp_bias"] = config.ffn_bias
    return fields
