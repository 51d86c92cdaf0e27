"""Rollouts: branch, score, advance (tree), whole trajectories (parallel), plain play."""
