"""A checkpoint folder: written whole or not at all, read only if every byte is the one written.

    <folder>/model.safetensors, optimizer.safetensors, …    one file a part
             state.json                                     scalars
             digests.json                                   SHA-256 of each of the others

It grows under a temporary name beside its place, is flushed to disk and then renamed, so that a folder of the right name is complete unless
the disk is at fault, and that is what the digests are for.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bus.disk import flush, room
from bus.errors import CheckpointError
from services.learner.digests import file_digest
from services.learner.tensor_file import in_turn, read_tensors, write_tensors

if TYPE_CHECKING:
    import torch

STATE_FILE = "state.json"
DIGESTS_FILE = "digests.json"
MODEL = "model"
"""The part with the weights, under the names that they are published with."""
CYCLE_STEP = "cycle_step"
"""Entry of the state: after which step the cycle began, of a learner that knows."""
_PARTIAL = ".partial-"

State = Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint folder holds: `state`, and each part's tensors by name."""

    folder: Path
    state: State
    parts: Mapping[str, Mapping[str, torch.Tensor]]

    def part(self, name: str) -> Mapping[str, torch.Tensor]:
        """Tensors of one part. Raises CheckpointError when it was not saved."""
        if name not in self.parts:
            raise CheckpointError(f"{self.folder} has no {name}.safetensors, only {sorted(self.parts)}: it was not written by this learner")
        return self.parts[name]

    def step(self, kind: str) -> int:
        """The step it was saved after, if a learner of `kind` saved it. Raises CheckpointError."""
        step = self.state.get("step")
        if self.state.get("kind") != kind or not isinstance(step, int):
            raise CheckpointError(f"{self.folder / STATE_FILE} says {dict(self.state)}: expected a step of a learner of kind {kind!r}")
        return step


def write_checkpoint(folder: Path, state: State, parts: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
    """Writes the folder; it must not exist. Of `LaterTensors`, one is in memory at a time.

    Raises CheckpointError when it does or when writing fails, and then leaves nothing.
    """
    if folder.exists():
        raise CheckpointError(f"{folder} exists: a checkpoint is never overwritten, choose another name or remove it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}{_PARTIAL}", dir=folder.parent))
    try:
        _write_files(partial, state, parts)
        partial.rename(folder)
        flush(folder.parent)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot write checkpoint {folder}: {error}; {room(folder)}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def read_checkpoint(folder: Path, parts: Collection[str] | None = None) -> Checkpoint:
    """Reads a checkpoint, or only some of its parts, and checks every file read. Raises CheckpointError naming a missing or torn one."""
    digests = _read_json(folder / DIGESTS_FILE)
    if parts is not None:
        digests = {name: digest for name, digest in digests.items() if name == STATE_FILE or Path(name).stem in parts}
    for name, digest in digests.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing: use an older checkpoint")
        if (found := file_digest(path)) != digest:
            raise CheckpointError(f"{path} is torn: its digest is {found}, {DIGESTS_FILE} says {digest}; use an older checkpoint")
    if STATE_FILE not in digests:
        raise CheckpointError(f"{folder / DIGESTS_FILE} does not list {STATE_FILE}: use an older checkpoint")
    names = [Path(name) for name in sorted(digests) if name.endswith(".safetensors")]
    return Checkpoint(folder, _read_json(folder / STATE_FILE), {name.stem: read_tensors(folder / name) for name in names})


def first_difference(saved: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Size]) -> str:
    """In what the tensors of a checkpoint are not those of the model, for a message."""
    for name in sorted(saved.keys() | expected.keys()):
        if name not in saved:
            return f"lacks {name}"
        if name not in expected:
            return f"has {name}, which the model lacks"
        if saved[name].shape != expected[name]:
            return f"has {name} with shape {list(saved[name].shape)}, the model's has {list(expected[name])}"
    return "does not differ"


def remove_partial_checkpoints(parent: Path) -> Sequence[Path]:
    """Removes what writers that were killed left in `parent`; only while nobody writes there. Returns what it removed."""
    leftovers = sorted(path for path in parent.glob(f".*{_PARTIAL}*") if path.is_dir())
    for path in leftovers:
        shutil.rmtree(path)
    return leftovers


def _write_files(partial: Path, state: State, parts: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
    for name, tensors in parts.items():
        write_tensors(in_turn(tensors), partial / f"{name}.safetensors")
    (partial / STATE_FILE).write_text(json.dumps(dict(state), indent=1, sort_keys=True) + "\n")
    files = sorted(partial.iterdir())
    (partial / DIGESTS_FILE).write_text(json.dumps({path.name: file_digest(path) for path in files}, indent=1) + "\n")
    for path in (*files, partial / DIGESTS_FILE, partial):
        flush(path)


def _read_json(path: Path) -> dict[str, str | int]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing: {path.parent} is no checkpoint, or not a complete one") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is torn: {error}; use an older checkpoint") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds {type(content).__name__}, not an object: use an older checkpoint")
    return content
