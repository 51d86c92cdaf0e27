"""Models: NNX inside, flat plain dicts of arrays outside."""
