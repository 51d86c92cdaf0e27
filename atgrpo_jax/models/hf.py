"""Weights of Hugging Face directories: safetensors straight onto the mesh, and out again."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from atgrpo_jax.mesh import shardings
from atgrpo_jax.models import decoder
from atgrpo_jax.models.decoder import Params
from atgrpo_jax.models.hf_config import config_json, read_config
from atgrpo_jax.models.layers import ModelConfig

FILE_BYTES = 4 << 30  # a file of weights is closed before it grows beyond this
_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
    "generation_config.json", "vocab.json", "merges.txt", "added_tokens.json",
)  # fmt: skip
_WHOLE = {
    "embed": "model.embed_tokens.weight",
    "norm.scale": "model.norm.weight",
    "head.kernel": "lm_head.weight",
}
_PARTS = (
    ("layers.", "model.layers."),
    ("attention_norm.scale", "input_layernorm.weight"),
    ("ffn_norm.scale", "post_attention_layernorm.weight"),
    ("_norm.scale", "_norm.weight"),
    (".attention.", ".self_attn."),
    (".ffn.", ".mlp."),
    (".kernel", "_proj.weight"),
    (".bias", "_proj.bias"),
)


def tensor_name(name: str) -> str:
    """The published tensor name of a parameter of ours that belongs to one layer or to none."""
    if name in _WHOLE:
        return _WHOLE[name]
    for ours, theirs in _PARTS:
        name = name.replace(ours, theirs)
    return name


def tensor_names(config: ModelConfig, name: str) -> list[str]:
    """The published tensors that make up one parameter of ours: one, or one a layer if stacked."""
    if not _is_stacked(name):
        return [tensor_name(name)]
    rest = name.removeprefix("layers.")
    return [tensor_name(f"layers.{i}.{rest}") for i in range(config.layers)]


def _is_stacked(name: str) -> bool:
    """Whether the first axis of the parameter runs over layers."""
    return re.match(r"layers\.[a-z]", name) is not None


def _is_transposed(name: str) -> bool:
    """Published matrices are [out, in]; our kernels are [in, out]."""
    return name.endswith(".kernel")


class Source:
    """The tensors of all safetensors files of a directory, read slice by slice."""

    def __init__(self, path: Path) -> None:
        self._stack = ExitStack()
        self._files: dict[str, tuple[Any, Path]] = {}
        files = sorted(path.glob("*.safetensors"))
        if not files:
            raise ValueError(f"{path} holds no *.safetensors file")
        for file in files:
            try:
                opened = self._stack.enter_context(safe_open(file, framework="numpy"))
            except SafetensorError as error:
                raise ValueError(f"{file} is truncated or damaged: {error}") from None
            for name in opened.keys():  # noqa: SIM118 (not a dict)
                if name in self._files:
                    raise ValueError(f"{file}: tensor {name!r} is there twice; remove a stale file")
                self._files[name] = opened, file

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def file(self, name: str) -> Path:
        """The file that holds a tensor."""
        return self._files[name][1]

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor as published."""
        return tuple(self._files[name][0].get_slice(name).get_shape())

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """Part of a tensor; nothing else of the file is read."""
        opened = self._files[name][0]
        part = opened.get_slice(name)[index] if index else opened.get_tensor(name)
        return np.asarray(part)


def load(
    path: str | Path,
    mesh: Mesh | None = None,
    param_dtype: str = "float32",
    **computing: Any,
) -> tuple[ModelConfig, Params]:
    """Reads a model straight onto the mesh: each device's slice alone, never a whole copy.

    `computing`: compute_dtype, remat, scan of ModelConfig. Raises ValueError in one line for
    missing, extra or wrongly shaped tensors and broken files.
    """
    config = read_config(path, **computing)
    shapes = decoder.shapes(config)
    abstract = {name: jax.ShapeDtypeStruct(shape, param_dtype) for name, shape in shapes.items()}
    placed = dict.fromkeys(shapes) if mesh is None else shardings(mesh, abstract)
    with Source(Path(path)) as source:
        _check(source, config, shapes, path)
        params = {
            name: _place(source, config, name, abstract[name], placed[name]) for name in shapes
        }
    return config, params


def _check(
    source: Source, config: ModelConfig, shapes: dict[str, tuple[int, ...]], path: str | Path
) -> None:
    """Every tensor that the model needs, in its shape, and no other."""
    wanted = {theirs: name for name in shapes for theirs in tensor_names(config, name)}
    for theirs in source:
        if theirs == "lm_head.weight" and config.tied_head:
            _check_second_head(source)
        elif theirs not in wanted:
            raise ValueError(
                f"{source.file(theirs)}: tensor {theirs!r} is not part of a {config.family} model"
            )
    missing = [theirs for theirs in wanted if theirs not in source]
    if missing:
        raise ValueError(f"{path}: tensor {missing[0]!r} is missing ({len(missing)} in all)")
    for theirs, name in wanted.items():
        shape = source.shape(theirs)
        shape = shape[::-1] if _is_transposed(name) else shape
        target = shapes[name][1:] if _is_stacked(name) else shapes[name]
        if shape != target:
            raise ValueError(
                f"{source.file(theirs)}: tensor {theirs!r} gives {name} the shape {shape}; "
                f"config.json says {target}"
            )


def _check_second_head(source: Source) -> None:
    """Some writers store a tied head twice; it must then be the embedding."""
    head = source.read("lm_head.weight", ())
    embed = "model.embed_tokens.weight"
    if embed in source and not np.array_equal(head, source.read(embed, ())):
        raise ValueError(
            f"{source.file('lm_head.weight')}: lm_head.weight differs from the embedding although "
            "config.json ties them; set tie_word_embeddings to false"
        )


def _place(
    source: Source,
    config: ModelConfig,
    name: str,
    abstract: jax.ShapeDtypeStruct,
    sharding: jax.sharding.NamedSharding | None,
) -> jax.Array:
    """One parameter on its devices, each of which reads its own slice."""
    names, stacked, turned = tensor_names(config, name), _is_stacked(name), _is_transposed(name)
    slices: dict[str, np.ndarray] = {}  # devices that hold the same slice read it once

    def read(index: Any) -> np.ndarray:
        if str(index) not in slices:
            inner = index[1:] if stacked else index
            chosen = names[index[0]] if stacked else names
            parts = [source.read(each, inner[::-1] if turned else inner) for each in chosen]
            parts = [part.T if turned else part for part in parts]
            whole = np.stack(parts) if stacked else parts[0]
            slices[str(index)] = np.ascontiguousarray(whole).astype(abstract.dtype)
        return slices[str(index)]

    if sharding is None:
        return jnp.array(read(tuple(slice(None) for _ in abstract.shape)))
    return jax.make_array_from_callback(abstract.shape, sharding, read)


def save(
    path: str | Path,
    config: ModelConfig,
    params: Params,
    source: str | Path,
    dtype: str = "float32",
) -> None:
    """Writes a directory that transformers loads; tokenizer files are copied from `source`.

    The directory appears whole; an older one is moved out of the way first. All processes call
    it, the first one writes.
    """
    path = Path(path)
    partial, old = path.with_name(path.name + ".partial"), path.with_name(path.name + ".old")
    if writes := jax.process_index() == 0:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
        partial.mkdir(parents=True)
    write(partial, config, params, dtype)
    if not writes:
        return
    for name in _TOKENIZER_FILES:
        if (Path(source) / name).exists():
            shutil.copyfile(Path(source) / name, partial / name)
    if path.exists():
        path.rename(old)
    partial.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def write(path: str | Path, config: ModelConfig, params: Params, dtype: str = "float32") -> None:
    """Writes config.json and the weights into an existing directory, at most FILE_BYTES of them in
    memory at a time."""
    path, first = Path(path), jax.process_index() == 0
    for stale in path.glob("*.safetensors*") if first else ():
        stale.unlink()
    files: list[list[str]] = []
    batch: dict[str, np.ndarray] = {}
    total = size = 0

    def flush() -> None:
        if first:
            save_file(batch, path / f"part-{len(files)}.safetensors", metadata={"format": "pt"})
        files.append(list(batch))
        batch.clear()

    for name, array in published(config, params, dtype):
        if batch and size + array.nbytes > FILE_BYTES:
            flush()
            size = 0
        batch[name] = array
        size, total = size + array.nbytes, total + array.nbytes
    flush()
    if first:
        _name_files(path, files, total)
        text = json.dumps(config_json(config, dtype), indent=2) + "\n"
        (path / "config.json").write_text(text)


def published(
    config: ModelConfig, params: Params, dtype: str = "float32"
) -> Iterator[tuple[str, np.ndarray]]:
    """Every tensor under its published name, on this host, one at a time."""
    for name, value in params.items():
        names = tensor_names(config, name)
        for i, theirs in enumerate(names):
            array = to_host(value[i] if _is_stacked(name) else value)
            array = array.T if _is_transposed(name) else array
            yield theirs, np.ascontiguousarray(array).astype(jnp.dtype(dtype))


def to_host(value: jax.Array) -> np.ndarray:
    """The whole array on this host, whichever processes hold its parts."""
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return np.asarray(multihost_utils.process_allgather(value, tiled=True))
    return np.asarray(value)


def _name_files(path: Path, files: list[list[str]], total: int) -> None:
    """Gives files their published names, and an index where there are several."""
    count = len(files)
    index: dict[str, str] = {}
    for number, tensors in enumerate(files):
        name = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        name = "model.safetensors" if count == 1 else name
        (path / f"part-{number}.safetensors").rename(path / name)
        index |= dict.fromkeys(tensors, name)
    if count > 1:
        document = {"metadata": {"total_size": total}, "weight_map": index}
        (path / "model.safetensors.index.json").write_text(json.dumps(document, indent=2) + "\n")
