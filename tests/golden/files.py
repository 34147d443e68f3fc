"""Where golden recordings lie, and how they are packed: a folder each, with the recorder's file compressed and the summary of a run.

recordings/as_today/NAME     this checkout's cores decide as recorded, whichever code made them
recordings/other_code/NAME   a core has been changed since on purpose: its decisions are read, balanced, and listed apart
recordings/known_bad/NAME    one thing in it is not as the code that made it does it
recordings/words/NAME        no run, but every kind of event with every field
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path

from bus.memory_log import MemoryStore
from bus.recorder import Recorder
from bus.recording import FILE_NAME
from replay.recorded import SUMMARY

RECORDINGS = Path(__file__).parent / "recordings"
PACKED = f"{FILE_NAME}.xz"


def golden(group: str) -> list[Path]:
    """The packed recordings of a group."""
    return sorted(path.parent for path in (RECORDINGS / group).glob(f"*/{PACKED}"))


def unpack(packed: Path, folder: Path) -> Path:
    """Makes `folder` the recording that is packed in `packed`, which stays as it is."""
    folder.mkdir(parents=True)
    (folder / FILE_NAME).write_bytes(lzma.decompress((packed / PACKED).read_bytes()))
    (folder / SUMMARY).write_text((packed / SUMMARY).read_text())
    return folder


def pack(folder: Path, packed: Path) -> None:
    """Packs the recording in `folder`, which nobody may be writing."""
    packed.mkdir(parents=True, exist_ok=True)
    (packed / PACKED).write_bytes(lzma.compress((folder / FILE_NAME).read_bytes(), preset=9))
    summary = json.loads((folder / SUMMARY).read_text())
    (packed / SUMMARY).write_text(f"{json.dumps({'last_chain': summary['last_chain']})}\n")


def record(store: MemoryStore, folder: Path) -> Path:
    """Records a log in `folder`, as a run leaves it."""
    with Recorder.open(folder, store.run, store.log_id) as recorder:
        recorder.append(store.entries)
        (folder / SUMMARY).write_text(json.dumps({"last_chain": recorder.last_chain}))
    return folder
