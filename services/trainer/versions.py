"""Which versions of a run's weights can still be had, and from where: the newest published ones, and those in checkpoints.

A checkpoint within a cycle is of no version: it is left out, for its step is not the one that was published.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

from bus.events import CheckpointSaved, Event, StepDone, WeightsPublished

KINDS = (StepDone.kind, WeightsPublished.kind, CheckpointSaved.kind)
"""The entries that `VersionFold` reads."""


@dataclass(frozen=True, slots=True)
class VersionPlaces:
    """A version that was published with `digest` in `dtype`, and what is left of it. With neither place, nothing is."""

    version: int
    step: int
    digest: str
    dtype: str
    published: str | None
    """File of the published weights, as a URI."""
    checkpoints: tuple[Path, ...]
    """Folders, the newest first."""

    @property
    def available(self) -> bool:
        return self.published is not None or bool(self.checkpoints)


def versions_of(events: Iterable[Event], folder: Path) -> dict[int, VersionPlaces]:
    """All versions of a run that were published. Its folder may have been moved since."""
    step = 0
    publications: dict[int, tuple[int, WeightsPublished]] = {}
    checkpoints: dict[tuple[int, int], list[Path]] = {}
    for event in events:
        match event:
            case StepDone():
                step = event.step
            case WeightsPublished():
                publications[event.version] = (step, event)
            case CheckpointSaved():
                checkpoints.setdefault((event.version, event.step), []).insert(0, _place(event.uri, folder / "checkpoints"))
            case _:
                pass
    return {
        version: VersionPlaces(
            version=version,
            step=step,
            digest=publication.digest,
            dtype=publication.dtype,
            published=_published(publication, folder),
            checkpoints=tuple(path for path in checkpoints.get((version, step), ()) if path.is_dir()),
        )
        for version, (step, publication) in publications.items()
    }


def _published(publication: WeightsPublished, folder: Path) -> str | None:
    path = _place(publication.uri, folder / "weights")
    return path.as_uri() if path.is_file() else None


def _place(uri: str, moved_to: Path) -> Path:
    """The path of a URI, or where it is when the run's folder was moved."""
    path = Path(unquote(urlparse(uri).path))
    return path if path.exists() else moved_to.absolute() / path.name
