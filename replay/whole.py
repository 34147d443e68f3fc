"""For whoever draws a recording and trusts it to be whole: what its folds raise where it is not is said in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bus.errors import LogError, SwingshiftError
from replay.core_check import CONFUSED


@contextmanager
def trusted_to_be_whole(folder: Path) -> Iterator[None]:
    """Raises LogError for what a fold raises on a log that cannot be."""
    try:
        yield
    except SwingshiftError:
        raise
    except CONFUSED as error:
        what = f"the recording in {folder} cannot be followed: {type(error).__name__}: {error}"
        raise LogError(f"{what}; `swingshift replay verify {folder}` says where it is not as it should be") from error
