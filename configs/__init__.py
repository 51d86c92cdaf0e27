"""Configs as documents: every default is in common.py, one file a task on top of it."""
