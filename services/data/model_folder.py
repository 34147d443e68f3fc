"""A Hugging Face model folder as far as planning and data need it: that it is one, its sizes, where answers end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bus.errors import ConfigError
from services.data.files import DIGEST_CHARACTERS

CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG = "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """What is said of the model in its folder. A number is None where the folder does not say it."""

    path: Path
    vocab_size: int | None
    """Rows of the embeddings."""
    max_positions: int | None
    """Tokens of the longest sequence."""
    eos_token_ids: tuple[int, ...]
    """Tokens that end an answer, as the generation settings have them, else the model's."""


def read_model_folder(path: Path) -> ModelFolder:
    """Raises ConfigError when `path` is no model folder."""
    if not path.is_dir():
        raise ConfigError(
            f"model.path is {path}: there is no folder {path.absolute()}; name a Hugging Face model folder "
            "(a model of the hub is downloaded first, by `hf download NAME --local-dir FOLDER`)"
        )
    if not (path / CONFIG).is_file():
        raise ConfigError(f"model.path is {path}: there is no {CONFIG} in it; name a Hugging Face model folder")
    config = read_json(path / CONFIG)
    if "model_type" not in config:
        raise ConfigError(f"model.path is {path}: its {CONFIG} names no model_type, so it is not that of a Hugging Face model")
    if not any(path.glob("*.safetensors")):
        raise ConfigError(f"model.path is {path}: there are no *.safetensors in it; save the model with save_pretrained")
    text = config.get("text_config")
    sizes = text if isinstance(text, Mapping) else config
    generation = read_json(path / GENERATION) if (path / GENERATION).is_file() else {}
    return ModelFolder(
        path=path,
        vocab_size=_number(sizes.get("vocab_size")),
        max_positions=_number(sizes.get("max_position_embeddings")),
        eos_token_ids=_ids(generation.get("eos_token_id")) or _ids(sizes.get("eos_token_id")) or _ids(config.get("eos_token_id")),
    )


def attention_heads(path: Path) -> int | None:
    """Of each layer; None where the folder does not say, or cannot be read."""
    try:
        config = read_json(path / CONFIG)
    except ConfigError:
        return None
    text = config.get("text_config")
    return _number((text if isinstance(text, Mapping) else config).get("num_attention_heads"))


def model_dtype(path: Path) -> str:
    """What the folder says that the model's weights are in; float32 where it says nothing, or cannot be read."""
    try:
        config = read_json(path / CONFIG)
    except ConfigError:
        return "float32"
    text = config.get("text_config")
    parts = (config, text) if isinstance(text, Mapping) else (config,)
    said = [part[name] for part in parts for name in ("dtype", "torch_dtype") if part.get(name)]
    return str(said[0]).removeprefix("torch.") if said else "float32"


def tokenizer_digest(path: Path) -> str:
    """Digest over the files that tokens and chat templates depend on."""
    total = hashlib.sha256()
    for name in (TOKENIZER, TOKENIZER_CONFIG, TEMPLATE):
        content = (path / name).read_bytes() if (path / name).is_file() else b""
        total.update(f"{name}\n{len(content)}\n".encode())
        total.update(content)
    return total.hexdigest()[:DIGEST_CHARACTERS]


def read_json(path: Path) -> Mapping[str, object]:
    """The object in a JSON file. Raises ConfigError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} does not hold an object, as a model's folder should")
    return found


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _ids(value: object) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(token for token in values if isinstance(token, int))
