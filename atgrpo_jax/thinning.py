"""Fewer members a group for the same gradient: repeats merged, the rest a weighted sample.

Taking the members of largest |advantage| would be cheaper to say and wrong: what is left out no
longer balances what is kept, so the loss pushes long or rare responses down on average.
"""

from __future__ import annotations

import numpy as np

FLOOR = 0.1  # added to |advantage|, so that entropy and KL see every member


def merge_repeats(
    response_BxKxR: np.ndarray,
    mask_BxKxR: np.ndarray,
    advantage_BxK: np.ndarray,
    member_BxK: np.ndarray,
) -> np.ndarray:
    """How often each member counts, int32 [B, K]: a response sampled again counts at its first
    branch, if its advantage is the same. 0 for repeats and for non-members."""
    count_BxK = np.zeros(member_BxK.shape, np.int32)
    tokens = np.where(mask_BxKxR, response_BxKxR, -1).astype(np.int32)
    first: dict[tuple[int, bytes, bytes], int] = {}
    for b, k in np.argwhere(member_BxK).tolist():
        name = (b, tokens[b, k].tobytes(), advantage_BxK[b, k].tobytes())
        count_BxK[b, first.setdefault(name, k)] += 1
    return count_BxK


def inclusion(share_BxK: np.ndarray, keep: int) -> np.ndarray:
    """Chances in [0, 1] proportional to `share` where that is below 1, `keep` in all a row.

    Rows with no more than `keep` shares above 0 get 1 for each of them.
    """
    chance = np.where(share_BxK > 0, 1.0, 0.0)
    full = chance.sum(-1) > keep
    sure = np.zeros(share_BxK.shape, bool)
    for _ in range(keep + 1):
        rest = np.where(sure, 0.0, share_BxK)
        room = (keep - sure.sum(-1, keepdims=True)) / np.maximum(rest.sum(-1, keepdims=True), 1e-30)
        grown = sure | (rest * room >= 1.0)
        if (grown == sure).all():
            break
        sure = grown
    return np.where(full[:, None], np.where(sure, 1.0, rest * room), chance)


def thin(
    advantage_BxK: np.ndarray, count_BxK: np.ndarray, keep: int, uniform_B: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Members kept, as indices [B, keep], and the weight float32 [B, keep] of each.

    keep = 0 keeps all K. A member that counts m times is kept with a chance p that grows with
    m |advantage| and then weighs m / p (Horvitz-Thompson): every weighted sum over members has the
    expectation of the sum over all. uniform_B in [0, 1) decides (systematic sampling). Weight 0
    marks indices that only fill a row.
    """
    branches = count_BxK.shape[1]
    keep = keep or branches
    chance = inclusion(count_BxK * (np.abs(advantage_BxK) + FLOOR), keep)
    edges = np.floor(np.cumsum(chance, axis=-1) + uniform_B[:, None] + 1e-9)
    taken = np.diff(edges, axis=-1, prepend=0.0) > 0
    index = np.argsort(~taken, axis=-1, kind="stable")[:, :keep]
    weight = np.where(taken, count_BxK / np.maximum(chance, 1e-30), 0.0)
    return index, np.take_along_axis(weight, index, axis=1).astype(np.float32)
