"""Writes weights as a Hugging Face folder, with what the initial model's folder has besides: configuration, tokenizer, chat template."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from bus.disk import flush
from bus.errors import ConfigError

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
_COPIED = (".json", ".txt", ".model", ".jinja", ".py")
_INDEX = ".index.json"
"""Lists the files that weights are spread over; here they are one file."""


def write_hf_folder(weights: Mapping[str, torch.Tensor], model: Path, to: Path) -> None:
    """Writes the folder `to`, whole or not at all. Raises ConfigError when it is there already, or when it cannot be written."""
    if not (model / CONFIG_FILE).is_file():
        raise ConfigError(f"the run began with the model in {model}, which has no {CONFIG_FILE} any more: put the folder back")
    if to.exists():
        raise ConfigError(f"{to} is there already: name another place with --to DIR, or remove it")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{to.name}.partial-", dir=to.parent))
    except OSError as error:
        raise ConfigError(f"{to} cannot be made: {error.strerror or error}; name another place with --to DIR") from error
    try:
        _write(weights, model, partial)
        partial.chmod(0o755)  # a temporary folder is its owner's only
        partial.rename(to)
        flush(to.parent)
    except (OSError, SafetensorError) as error:
        free = shutil.disk_usage(to.parent).free
        raise ConfigError(f"{to} cannot be written: {error}; {free} bytes are free there") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(weights: Mapping[str, torch.Tensor], model: Path, partial: Path) -> None:
    for path in sorted(model.iterdir()):
        if path.is_file() and path.suffix in _COPIED and not path.name.endswith(_INDEX):
            shutil.copyfile(path, partial / path.name)
    config = json.loads((model / CONFIG_FILE).read_text())
    config.pop("torch_dtype", None)  # the older name of dtype
    config["dtype"] = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    (partial / CONFIG_FILE).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, partial / WEIGHTS_FILE, metadata={"format": "pt"})
    for path in (*sorted(partial.iterdir()), partial):
        flush(path)
