"""Model folders and data files for tests: a real tokenizer of bytes, and of the model no more than its sizes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

BYTES = 256
BEGIN, END, USER, ASSISTANT = range(BYTES, BYTES + 4)
SPECIAL = ("<|begin|>", "<|end|>", "<|user|>", "<|assistant|>")
TEMPLATE = (
    "<|begin|>{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer() -> Tokenizer:
    """One token for each byte, and a begin token before texts."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", BEGIN)])
    return tokenizer


def make_folder(
    folder: Path, template: str | None = TEMPLATE, config: Mapping[str, object] | None = None, end: str | None = "<|end|>"
) -> Path:
    """A folder that planning takes for a model. `config`: further settings of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {"model_type": "qwen2", "vocab_size": BYTES + len(SPECIAL), "max_position_embeddings": 2048}
    (folder / "config.json").write_text(json.dumps(sizes | dict(config or {})))
    (folder / "model.safetensors").write_bytes(b"")
    make_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<|begin|>", **({"eos_token": end} if end else {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def text_of(tokens: Sequence[int]) -> str:
    """What tokens stand for, special ones in angle brackets."""
    return make_tokenizer().decode(list(tokens), skip_special_tokens=False)


def write_lines(path: Path, rows: Sequence[object]) -> str:
    """A JSONL file; texts are written as they are."""
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)
