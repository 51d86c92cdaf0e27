"""A fast word-level tokenizer with a chat template, for policies of a closed vocabulary."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

PAD, UNKNOWN, START, END = "<|pad|>", "<|unknown|>", "<|im_start|>", "<|im_end|>"
ROLES = ("system", "user", "assistant")
TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|> {{ message['role'] }} {{ message['content'] }} <|im_end|> "
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant{% endif %}"
)


def build_tokenizer(words: Sequence[str], max_positions: int) -> PreTrainedTokenizerFast:
    """Tokens are whitespace-separated words; whatever is not in `words` becomes <|unknown|>."""
    names = [PAD, UNKNOWN, START, END, *ROLES]
    names += [word for word in words if word not in names]
    core = Tokenizer(WordLevel({name: i for i, name in enumerate(names)}, unk_token=UNKNOWN))
    core.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        additional_special_tokens=[START],
        model_max_length=max_positions,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def save_tokenizer(
    tokenizer: PreTrainedTokenizerFast, path: str | Path, stops: Sequence[str]
) -> None:
    """Writes tokenizer files and generation_config.json with the ids of `stops`."""
    tokenizer.save_pretrained(path)
    ids = tokenizer.convert_tokens_to_ids(list(stops))
    config = {"eos_token_id": ids, "pad_token_id": tokenizer.pad_token_id, "do_sample": True}
    (Path(path) / "generation_config.json").write_text(json.dumps(config, indent=2) + "\n")
