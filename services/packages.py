"""Which Python packages are installed here. Loads none of them."""

from __future__ import annotations

from importlib import metadata


def version_of(package: str) -> str:
    """The version of a package that is installed; empty: it is not."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
