"""A sampler whose replies come from a function of prompt text, branch and keys."""

import numpy as np

from atgrpo_jax.policy import Policy
from atgrpo_jax.samplers.base import ABORT, STOP, Samples


class CharChat:
    """Text to characters and back; id 0 is padding, id 1 stops."""

    stop_ids = (1,)
    pad_id = 0
    max_positions = 4096

    def encode(self, messages):
        return np.array([ord(c) for c in messages[-1]["content"]], np.int32)

    def decode(self, ids):
        return "".join(chr(i) for i in ids if i > 1)


def policy(name="team", version=0):
    return Policy(name, None, CharChat(), {}, version=version)


class ScriptedSampler:
    """`reply(text, k, key) -> str`; "ABORT" is an aborted request. Every call is kept."""

    def __init__(self, reply):
        self.reply = reply
        self.calls = []

    def sample(self, policy, prompts, keys_BxKx2, *, temperature, max_new_tokens):
        count, branches = keys_BxKx2.shape[:2]
        tokens = np.zeros((count, branches, max_new_tokens), np.int32)
        mask = np.zeros(tokens.shape, bool)
        finish = np.full((count, branches), STOP, np.int8)
        for b, prompt in enumerate(prompts):
            text = policy.chat.decode(prompt)
            for k in range(branches):
                answer = self.reply(text, k, keys_BxKx2[b, k])
                if answer == "ABORT":
                    finish[b, k] = ABORT
                    continue
                ids = [ord(c) for c in answer] + [1]
                tokens[b, k, : len(ids)] = ids
                mask[b, k, : len(ids)] = True
        self.calls.append((policy.name, [policy.chat.decode(p) for p in prompts], keys_BxKx2))
        logprob = np.where(mask, -0.5, 0.0).astype(np.float32)
        versions = np.full(count, policy.version, np.int32)
        return Samples(tokens, logprob, mask, finish, versions)


def digit(text, k, key):
    """A digit out of the branch's key alone."""
    return str(int(key[0]) % 10)
