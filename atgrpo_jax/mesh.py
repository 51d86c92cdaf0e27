"""The device mesh (data, fsdp, tensor) and where each parameter lives on it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXES = ("data", "fsdp", "tensor")

# First match wins. Kernels are [in, out]; the embedding is [vocabulary, width]. Of a layer's name
# the rules see what comes after its number; the first axis of stacked layers is not split.
RULES: tuple[tuple[str, PartitionSpec], ...] = (
    (r"embed", PartitionSpec("tensor", "fsdp")),
    (r"head\.kernel", PartitionSpec("fsdp", "tensor")),
    (r"attention\.[qkv]\.kernel", PartitionSpec("fsdp", "tensor")),
    (r"attention\.o\.kernel", PartitionSpec("tensor", "fsdp")),
    (r"attention\.[qkv]\.bias", PartitionSpec("tensor")),
    (r"ffn\.(gate|up)\.kernel", PartitionSpec("fsdp", "tensor")),
    (r"ffn\.down\.kernel", PartitionSpec("tensor", "fsdp")),
    (r"ffn\.(gate|up)\.bias", PartitionSpec("tensor")),
    (r"(attention\.o|ffn\.down)\.bias", PartitionSpec()),
    (r"(.*\.)?\w*norm\.scale", PartitionSpec()),
)


def make_mesh(data: int, fsdp: int, tensor: int) -> Mesh:
    """A mesh over all devices; one size may be -1 for what the others leave.

    Raises ValueError when the sizes do not multiply to the number of devices.
    """
    sizes, devices = [data, fsdp, tensor], jax.device_count()
    if sizes.count(-1) == 1:
        known = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = devices // known if known > 0 else 0
    if min(sizes) < 1 or math.prod(sizes) != devices:
        raise ValueError(
            f"mesh data={data} fsdp={fsdp} tensor={tensor} does not cover {devices} devices; "
            f"make the product {devices} (one of them may be -1)"
        )
    return Mesh(np.asarray(jax.devices()).reshape(sizes), AXES)


def spec(name: str) -> PartitionSpec:
    """The rule for one parameter; raises ValueError when none matches."""
    layer = re.match(r"layers\.(\d+\.)?", name)
    stacked = layer is not None and layer[1] is None
    for pattern, found in RULES:
        if re.fullmatch(pattern, name[layer.end() :] if layer else name):
            return PartitionSpec(None, *found) if stacked else found
    raise ValueError(f"parameter {name!r} matches no sharding rule; add one to mesh.RULES")


def shardings(mesh: Mesh, params: Mapping[str, Any]) -> dict[str, NamedSharding]:
    """The sharding of every parameter.

    Raises ValueError, naming the parameter, when an axis does not divide its dimension.
    """
    placed = {}
    for name, value in params.items():
        found = spec(name)
        for size, axis in zip(value.shape, found, strict=False):
            if axis is not None and size % mesh.shape[axis]:
                raise ValueError(
                    f"mesh axis {axis}={mesh.shape[axis]} does not divide the dimension of "
                    f"{size} of parameter {name!r}; choose a divisor of {size}"
                )
        placed[name] = NamedSharding(mesh, found)
    return placed


def shard(mesh: Mesh, params: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """`params` laid out on the mesh by RULES."""
    return jax.device_put(params, shardings(mesh, params))


def row_shards(mesh: Mesh) -> int:
    """Into how many parts the rows of a batch are split: (data, fsdp)."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def place_rows(mesh: Mesh, tree: Any, axis: int = 0) -> Any:
    """Arrays on the mesh, `axis` of each spread over (data, fsdp)."""
    sharding = NamedSharding(mesh, PartitionSpec(*[None] * axis, ("data", "fsdp")))
    return jax.tree.map(lambda array: jax.device_put(np.asarray(array), sharding), tree)
