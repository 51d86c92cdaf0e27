"""What every sampler takes and gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from atgrpo_jax.policy import Policy

STOP, LENGTH, ABORT = 0, 1, 2  # finish reasons


@dataclass(frozen=True)
class Samples:
    """K responses to each of B prompts; everything under mask False is padding.

    The mask covers sampled tokens, the stop token included. Log-probabilities are taken at the
    sampling temperature. `weight_version_B` is the version of the policy that answered.
    """

    token_ids_BxKxR: np.ndarray  # int32
    logprob_BxKxR: np.ndarray  # float32
    mask_BxKxR: np.ndarray  # bool
    finish_BxK: np.ndarray  # int8: STOP, LENGTH or ABORT
    weight_version_B: np.ndarray  # int32


class Sampler(Protocol):
    """Draws branches; the in-process sampler and a cluster client look the same."""

    def sample(
        self,
        policy: Policy,
        prompts: Sequence[np.ndarray],
        keys_BxKx2: np.ndarray,
        *,
        temperature: float,
        max_new_tokens: int,
    ) -> Samples:
        """K = keys.shape[1] responses to each prompt; temperature 0 is greedy.

        The same key gives the same response, whatever else is in the batch.
        """
        ...
