"""From chat messages to token ids and back, by the model's own tokenizer and template."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer


@dataclass(frozen=True)
class Chat:
    """A tokenizer with its chat template, stop ids and context length in tokens."""

    tokenizer: Any
    stop_ids: tuple[int, ...]
    pad_id: int
    max_positions: int
    thinking: bool = False

    def encode(self, messages: list[dict[str, str]]) -> np.ndarray:
        """Prompt ids int32 [S], ready for the assistant to go on; BOS as the template says.

        Raises ValueError for a word that the tokenizer does not know: the model could not read it.
        """
        text = self.tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=self.thinking,
        )
        ids = np.asarray(self.tokenizer.encode(text, add_special_tokens=False), np.int32)
        unknown = self.tokenizer.unk_token_id
        if unknown is not None and unknown in ids and self.tokenizer.unk_token not in text:
            encode = self.tokenizer.encode
            word = next(w for w in text.split() if unknown in encode(w, add_special_tokens=False))
            raise ValueError(
                f"the tokenizer does not know {word!r}, which is part of a prompt; make a policy "
                "that does (launch/make_tiny_policy.py)"
            )
        return ids

    def decode(self, ids: np.ndarray) -> str:
        """Text of sampled ids, special tokens skipped."""
        return self.tokenizer.decode(np.asarray(ids).tolist(), skip_special_tokens=True)


def load_chat(path: str, max_positions: int | None = None, thinking: bool = False) -> Chat:
    """Reads tokenizer, template and stop ids from a Hugging Face directory.

    `max_positions` is for a directory that has no model yet; else config.json says it.

    Raises ValueError, in one line, when the directory lacks a template or a stop id.
    """
    if max_positions is None and not (Path(path) / "config.json").exists():
        raise ValueError(f"{path} is no model directory: it has no config.json")
    file = Path(path) / "generation_config.json"
    if not file.exists():
        raise ValueError(f"{path} has no generation_config.json, which names the stop ids; add it")
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    if not tokenizer.chat_template:
        raise ValueError(f"{path} has no chat template; add chat_template.jinja to it")
    stop = json.loads(file.read_text()).get("eos_token_id")
    if stop is None:
        raise ValueError(f"{file} names no eos_token_id; add one")
    if max_positions is None:
        config = json.loads((Path(path) / "config.json").read_text())
        max_positions = config["max_position_embeddings"]
    stop_ids = tuple(stop) if isinstance(stop, list) else (stop,)
    pad = tokenizer.pad_token_id
    return Chat(
        tokenizer=tokenizer,
        stop_ids=stop_ids,
        pad_id=stop_ids[0] if pad is None else pad,
        max_positions=max_positions,
        thinking=thinking,
    )
