"""Every test sees eight CPU devices, so that sharding rules really apply."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
flags = os.environ.get("XLA_FLAGS", "")
if "xla_force_host_platform_device_count" not in flags:
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count=8".strip()
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Shapes and dtypes of the public kernels are checked at every call that a test makes.
from jaxtyping import install_import_hook  # noqa: E402

install_import_hook(["atgrpo_jax.advantages", "atgrpo_jax.loss"], "beartype.beartype")
