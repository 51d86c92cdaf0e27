"""On-policy reinforcement learning for teams of language-model agents, by AT-GRPO."""
