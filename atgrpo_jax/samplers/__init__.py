"""Where branches come from: token ids in, token ids and log-probabilities out."""
