"""Prompts and stop ids by the model's own tokenizer and template."""

import json
import shutil

import numpy as np
import pytest

from atgrpo_jax.models import words
from atgrpo_jax.models.chat import load_chat

WORDS = ("[", "]", "U", "R", "tool", "r1c2")


@pytest.fixture
def directory(tmp_path):
    words.save_tokenizer(words.build_tokenizer(WORDS, 64), str(tmp_path), stops=["]", words.END])
    return tmp_path


def test_a_prompt_is_the_template_once_and_ready_to_answer(directory):
    chat = load_chat(str(directory), 64)
    ids = chat.encode([{"role": "user", "content": "tool r1c2 U"}])
    assert ids.dtype == np.int32
    text = chat.tokenizer.apply_chat_template(
        [{"role": "user", "content": "tool r1c2 U"}], tokenize=False, add_generation_prompt=True
    )
    assert chat.tokenizer.decode(ids).split() == text.split()
    assert chat.decode(ids) == "tool r1c2 U" or "tool r1c2 U" in chat.decode(ids)


def test_a_word_the_tokenizer_does_not_know_is_an_error(directory):
    chat = load_chat(str(directory), 64)
    with pytest.raises(ValueError, match="does not know 'second', which is part of a prompt"):
        chat.encode([{"role": "user", "content": "tool second r1c2"}])


def test_every_stop_id_is_known(directory):
    chat = load_chat(str(directory), 64)
    assert {chat.tokenizer.convert_ids_to_tokens(i) for i in chat.stop_ids} == {"]", words.END}


def test_a_reply_reads_back(directory):
    chat = load_chat(str(directory), 64)
    ids = chat.tokenizer.encode("[ U R ]", add_special_tokens=False)
    assert (
        chat.decode(np.array([*ids, chat.tokenizer.convert_tokens_to_ids(words.END)])) == "[ U R ]"
    )


@pytest.mark.parametrize(
    ("spoil", "words_"),
    [
        (lambda path: (path / "generation_config.json").unlink(), "has no generation_config.json"),
        (lambda path: (path / "generation_config.json").write_text("{}"), "names no eos_token_id"),
        (lambda path: (path / "chat_template.jinja").unlink(), "has no chat template"),
    ],
)
def test_what_is_missing_is_named_in_one_line(directory, spoil, words_):
    spoil(directory)
    with pytest.raises(ValueError, match=words_) as error:
        load_chat(str(directory), 64)
    assert "\n" not in str(error.value)


def test_one_stop_id_may_stand_alone(directory):
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    assert load_chat(str(directory), 64).stop_ids == (2,)
    shutil.rmtree(directory)
