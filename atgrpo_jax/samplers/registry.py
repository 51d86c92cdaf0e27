"""Samplers by name; a cluster is one more row."""

from jax.sharding import Mesh

from atgrpo_jax.config import RunConfig
from atgrpo_jax.samplers.base import Sampler
from atgrpo_jax.samplers.jax_sampler import JaxSampler

SAMPLERS = {
    "jax": lambda config, mesh: JaxSampler(
        mesh, config.rollout.sequences, config.rollout.prompt_tokens
    ),
}


def make_sampler(config: RunConfig, mesh: Mesh) -> Sampler:
    """The sampler that `config.sampler` names."""
    return SAMPLERS[config.sampler](config, mesh)
