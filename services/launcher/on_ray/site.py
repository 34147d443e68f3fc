"""A Ray cluster as the site of a run.

connect ▸ machine(): GPUs over all nodes ▸ plan ▸ check(), preview(): survey of the nodes: what do they lack ▸ placement ▸ is there room
folder, server ▸ launching(): survey, with the run's own ones ▸ placement ▸ placement group ▸ RayLauncher ▸ … ▸ all of it removed
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from bus.errors import ConfigError
from bus.events import RunPlanned
from services.config import RunConfig
from services.devices import Machine
from services.launcher.fitting import check_things
from services.launcher.folders import remove_shm_folder
from services.launcher.on_ray import cluster
from services.launcher.on_ray.aside import Aside
from services.launcher.on_ray.asking import Question, alive_nodes, ask_nodes
from services.launcher.on_ray.group import refuse_second, refuse_too_small, reserved
from services.launcher.on_ray.look import look
from services.launcher.on_ray.newcomers import Survey
from services.launcher.on_ray.placement import GPU, Node, place
from services.launcher.on_ray.runtime_env import WORKING_DIR, runtime_env, submitted_env
from services.launcher.on_ray.survey import Asked, Found, asked, asking, differences, judge, needs_of, needs_settings, versions_here
from services.launcher.on_ray.words import placed_words
from services.launcher.protocol import Launcher, RunPlace, Say

SURVEY_S = 60.0
"""Longest wait for what a node says of itself; most of it goes into its copy of the checkout."""
CLEAR_S = 10.0
PREPARE_S = 600.0
"""The same where packages have to be installed first (cluster.runtime_env)."""
INSTALLS = ("pip", "uv", "conda", "container", "image_uri")


class RaySite:
    """Services are actors of a Ray cluster, wherever there is room. `look`: what each node is asked, for tests of unequal nodes."""

    multi_machine = True

    def __init__(
        self, address: str | None, environment: Mapping[str, str], say: Say, server: str | None = None, look: Question = look
    ) -> None:
        """`server`: URL of the one that a new run is to be on; None: it gets an embedded one. Raises ConfigError where there is no Ray."""
        cluster.check_installed()
        self._address = address
        self._environment = environment
        self._say = say
        self._server = server
        self._look = look
        self._aside = Aside()
        self._is_connected = False
        self._told: set[str] = set()
        self._looked: tuple[Asked, list[Node]] | None = None
        """What was asked last before a run has a folder, and found."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._is_connected:
            cluster.disconnect()
            self._is_connected = False
        self._aside.__exit__(kind, error, trace)

    def machine(self, config: RunConfig) -> Machine:
        nodes = self._nodes(config)
        return Machine((), sum(int(node.total.get(GPU, 0)) for node in nodes), len(nodes))

    def check(self, plan: RunPlanned, config: RunConfig, say: Say, *, goes_on: bool = False) -> None:
        if goes_on:
            # Where its folder is now is known at `launching`, and looked for then.
            check_things(plan, config, say)
            nodes = self._nodes(config)
        else:
            refuse_passing(config.folder, submitted_env(self._environment))
            nodes = self._before(plan, config)
        refuse_too_small(place(plan, config, nodes), nodes)

    def preview(self, plan: RunPlanned, config: RunConfig) -> Sequence[tuple[str, str]]:
        nodes = self._before(plan, config)
        return placed_words(place(plan, config, nodes), nodes)

    def clear(self, run: str, *, has_ended: bool) -> None:
        # What lies in a node's memory is of use until the log has its RunEnded: whoever goes on with the run looks for it there.
        if has_ended and self._is_connected:
            ask_nodes(clear_here, run, {node.id: node.name for node in alive_nodes()}, CLEAR_S, self._say)

    @contextmanager
    def launching(self, where: RunPlace, plan: RunPlanned, config: RunConfig, say: Say) -> Iterator[Launcher]:
        from services.launcher.on_ray.launcher import RayLauncher

        self._connect(config)
        self._aside.into(where.log_file("ray"))
        refuse_second(where.run, say)
        ask = partial(self._text, config, where)
        needs = needs_of(plan, config, folder_has_settings=needs_settings(where.folder))
        with ask() as question:
            nodes = self._survey(question, needs, config)
        placement = place(plan, config, nodes)
        known = {node.id: node.lacks for node in nodes}
        survey = Survey(known, ask, self._look, partial(self._judge, needs), tuple(needs), _patience_s(config), say)
        with reserved(placement, nodes, where.run, config, say) as group, RayLauncher(where, placement, group, survey=survey) as launcher:
            yield launcher

    @contextmanager
    def _text(self, config: RunConfig, where: RunPlace) -> Iterator[str]:
        with asking(config, where.folder, where.url) as question:
            yield question.model_dump_json()

    def _before(self, plan: RunPlanned, config: RunConfig) -> list[Node]:
        """The nodes as they are before the run has a folder and, perhaps, a server."""
        folder = config.folder.absolute()
        settled = asked(config, folder)
        if self._looked is None or self._looked[0] != settled:
            self._connect(config)
            with asking(config, folder, self._server) as question:
                self._looked = settled, self._survey(question.model_dump_json(), needs_of(plan, config, folder_has_settings=False), config)
        return self._looked[1]

    def _connect(self, config: RunConfig) -> None:
        if not self._is_connected:
            self._aside.__enter__()
            environment = runtime_env(config.cluster.runtime_env, submitted_env(self._environment))
            cluster.connect(self._address, self._environment, environment, self._say)
            self._is_connected = True

    def _nodes(self, config: RunConfig) -> list[Node]:
        self._connect(config)
        return alive_nodes()

    def _survey(self, question: str, needs: Mapping[str, Sequence[str]], config: RunConfig) -> list[Node]:
        """The nodes, and what each of them lacks."""
        nodes = self._nodes(config)
        names = {node.id: node.name for node in nodes}
        answers = ask_nodes(self._look, question, names, _patience_s(config), self._say)
        silent = {node: dict.fromkeys(needs, f"nothing starts there: {answer.error}") for node, answer in answers.items() if answer.error}
        lacks = silent | {node: self._judge(needs, names[node], answer.text) for node, answer in answers.items() if not answer.error}
        return [replace(node, lacks=lacks[node.id]) for node in nodes]

    def _judge(self, needs: Mapping[str, Sequence[str]], name: str, text: str) -> dict[str, str]:
        """What a node lacks, by its answer. What is new of other versions is told."""
        found = Found.model_validate_json(text)
        for words in differences({name: found}, versions_here()):
            if words not in self._told:
                self._told.add(words)
                self._say(words)
        return judge(found, needs)


def _patience_s(config: RunConfig) -> float:
    return PREPARE_S if any(name in config.cluster.runtime_env for name in INSTALLS) else SURVEY_S


def clear_here(run: str) -> str:
    """On a node: frees the memory that a run's weights are in."""
    remove_shm_folder(run)
    return ""


def refuse_passing(folder: Path, submitted: Mapping[str, object] | None) -> None:
    """Raises ConfigError for a run in the folder that Ray makes for a submitted job, and takes away after it."""
    if submitted and WORKING_DIR in submitted and folder.absolute().is_relative_to(Path.cwd()):
        raise ConfigError(
            f"folder is {folder}, within {Path.cwd()}, which Ray made for this job and takes away after it: name a folder that all nodes "
            "share with --set folder=/DIR"
        )
