"""Every field of a run and its default; task files change some of them.

A field is overridden by `--config.rollout.branches=8`. atgrpo_jax/config.py says what is allowed.
"""

from ml_collections import config_dict

# c_l of Eq. 3 by role and part, every part named so that `--config` can weigh it; the one agent of
# `solo` is paid like the planner.
SOKOBAN_TOOL = {
    "format": 0.1,  # the reply held one readable list
    "legal": 0.1,  # share of its moves that were not blocked
    "deadlock_free": 0.2,  # the boxes can still reach the goals
    "potential": 0.6,  # how much shorter the way to the solution became, over that of the start
    "executes": 0.0,  # no move was blocked
}
PLAN_PATH_TOOL = {
    "format": 0.1,
    "legal": 0.1,
    "next": 0.2,  # the first move is on a shortest path
    "shape": 0.6,  # how much shorter the way to the goal became, over that of the start
    "executes": 0.0,
}
SOKOBAN_PLANNER, PLAN_PATH_PLANNER = dict(SOKOBAN_TOOL), dict(PLAN_PATH_TOOL)


def role_weights(planner: dict[str, float], tool: dict[str, float]) -> config_dict.ConfigDict:
    """reward.weights of every role of every workflow."""
    roles = {"planner": planner, "tool": tool, "solo": planner}
    return config_dict.ConfigDict({role: dict(weights) for role, weights in roles.items()})


class Document(config_dict.ConfigDict):
    """The root of a config, whose field `update` is not ConfigDict's method of that name."""

    @property
    def update(self) -> config_dict.ConfigDict:  # type: ignore[override]
        """The field; without this, `--config.update.keep=4` would reach for the method."""
        return self["update"]


def get_config() -> config_dict.ConfigDict:
    """A complete run on Sokoban; what configs/TASK.py starts from."""
    config = Document()
    config.seed = 0  # the run's only seed; every random stream is derived from it
    config.steps = 250  # training steps; each rolls out once
    config.sampled_tokens = 0  # the run also ends once it has sampled this many; 0: no limit
    config.algorithm = "at_grpo"  # at_grpo | grpo
    config.workflow = "planner_tool"  # planner_tool | solo
    config.policies = "shared"  # shared: one policy for all roles | per_role
    config.sampler = "jax"  # jax: in this process

    config.environment = config_dict.ConfigDict()
    config.environment.name = "sokoban"  # sokoban | plan_path
    config.environment.size = 6  # cells a side, Sokoban's outer wall included
    config.environment.boxes = 1  # Sokoban: 1 to 4; Plan-Path has none: 0
    config.environment.wall_rate = 0.15  # chance of a wall for an inner cell
    config.environment.max_moves = 6  # longest action list of one reply
    config.environment.rendering = "compact"  # compact: one line | grid: for real language models

    config.model = config_dict.ConfigDict()
    config.model.path = "assets/tiny_sokoban"  # Hugging Face directory to start from
    config.model.param_dtype = "float32"  # float32 | bfloat16; of weights and optimizer state
    config.model.compute_dtype = "float32"  # float32 | bfloat16; of the forward pass
    config.model.remat = "none"  # activations kept for backward: none: all | dots: products | full
    config.model.scan = False  # compile one layer for all, their parameters stacked
    config.model.thinking = False  # what the chat template is told of thinking, if it asks

    config.rollout = config_dict.ConfigDict()
    config.rollout.environments = 64  # E: boards a step
    config.rollout.branches = 16  # K: responses a group
    config.rollout.turns = 4  # T: most turns an episode
    config.rollout.mode = config_dict.placeholder(str)  # tree | parallel; unset: the algorithm's
    config.rollout.temperature = 1.0  # of sampling; the learner scores at the same one
    config.rollout.max_new_tokens = 8  # longest response, stop token included
    config.rollout.prompt_tokens = 64  # prompts are padded to this, longer ones to a bucket
    config.rollout.sequences = 256  # responses decoded at once by the sampler; changes memory only
    config.rollout.advance = "greedy"  # greedy | sampled | first: which branch moves the state
    config.rollout.random_advance = 0.5  # chance that a group advances a uniformly drawn branch
    config.rollout.max_failure_rate = 0.1  # share of failed scores above which the run stops

    config.reward = config_dict.ConfigDict()
    config.reward.alpha = 1.0  # weight of the team reward (Eq. 3)
    config.reward.weights = role_weights(SOKOBAN_PLANNER, SOKOBAN_TOOL)  # c_l by role and part

    config.advantage = config_dict.ConfigDict()
    config.advantage.scale = "population"  # F_norm (Eq. 1): population | unbiased | none
    config.advantage.leave_one_out = False  # baseline: mean of the other members
    config.advantage.tolerance = 1e-6  # rewards this close are no contrast: advantage 0

    config.update = config_dict.ConfigDict()
    config.update.learning_rate = 5e-4  # peak, of AdamW
    config.update.warmup_steps = 0  # optimiser steps of linear warm-up
    config.update.schedule = "linear"  # constant | cosine | linear: after the warm-up
    config.update.final_fraction = 0.1  # last learning rate over the peak (cosine, linear)
    config.update.weight_decay = 0.01  # of matrices; norms and biases are left alone
    config.update.beta1 = 0.9  # Adam's first moment
    config.update.beta2 = 0.999  # Adam's second moment
    config.update.clip_norm = 1.0  # global norm that gradients are clipped to
    config.update.clip_low = 0.2  # the ratio is clipped to [1 - clip_low, 1 + clip_high]
    config.update.clip_high = 0.28
    config.update.epochs = 1  # passes over a rollout
    config.update.minibatches = 4  # optimiser steps a pass
    config.update.micro_batch = 16  # groups a forward and backward pass; changes memory only
    config.update.keep = 8  # different members of a group at most in the update, unbiased; 0: all
    config.update.entropy = 0.015  # weight of the entropy bonus
    config.update.kl = 0.0  # weight of the k3 KL to the starting policy; 0: no reference is held
    config.update.aggregation = "token"  # token | sequence | constant: what the loss is a mean of
    config.update.share_prompt = True  # compute a group's prompt once

    config.mesh = config_dict.ConfigDict()
    config.mesh.data = -1  # devices along each axis; at most one -1: all that the others leave
    config.mesh.fsdp = 1
    config.mesh.tensor = 1

    config.evaluate = config_dict.ConfigDict()
    config.evaluate.every = 20  # training steps; 0: only at the start and the end
    config.evaluate.episodes = 256  # held-out boards
    config.evaluate.final_episodes = 1024  # held-out boards at the start and the end
    config.evaluate.temperature = 1.0  # 0: the likeliest token

    config.checkpoint = config_dict.ConfigDict()
    config.checkpoint.every = 20  # training steps; 0: only at the end
    config.checkpoint.keep = 2  # newest checkpoints kept; the best one is kept beside them

    config.log = config_dict.ConfigDict()
    config.log.trees = 2  # environments whose trees are written; tree mode alone has trees
    config.log.trees_every = 20  # training steps; 0: never
    return config
