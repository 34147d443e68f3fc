"""What a node lacks, by what it says of itself; no second machine, and no Ray, is needed for that."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bus.errors import ConfigError
from services.config import RunConfig
from services.config_file import make_config
from services.devices import DECIDERS, Machine
from services.launcher.on_ray import look as looking
from services.launcher.on_ray.look import look, look_here
from services.launcher.on_ray.placement import Node, place
from services.launcher.on_ray.survey import Asked, Found, asked, asking, differences, judge, needs_of
from services.machine import host_of, machine_id
from services.plan import plan_run

NODES = Machine((), 0, 3)


def config(**sections: object) -> RunConfig:
    return make_config({"async_training": {"total_steps": 10}, **sections}, "test")


@pytest.fixture(autouse=True)
def _nothing_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """All is on one file system, which shows a file at once or never."""
    monkeypatch.setattr(looking, "SEEN_S", 0.0)


def question(folder: Path, **facts: object) -> Asked:
    """One that a node with nothing at all can answer well, but for `facts`."""
    nothing = asked(config(model={"path": "scripted"}, rollout={"engine": "scripted"}), folder)
    return nothing.model_copy(update=facts)


def found(**problems: str) -> Found:
    return Found(host="n", versions={"torch": "2.13.0"}, problems=problems)


def test_a_node_that_has_all_has_no_problems(tmp_path: Path) -> None:
    assert look_here(question(tmp_path)).problems == {}


def test_what_is_asked_and_said_is_text(tmp_path: Path) -> None:
    answer = Found.model_validate_json(look(question(tmp_path).model_dump_json()))
    assert (answer.host, answer.problems) == (os.uname().nodename, {})


def test_a_folder_is_the_same_only_with_the_marker_of_this_run_in_it(tmp_path: Path) -> None:
    (tmp_path / ".seen").write_text("it is this one")
    shared = (tmp_path,)
    assert look_here(question(tmp_path, marker=".seen", content="it is this one", shared=shared)).problems == {}
    other = look_here(question(tmp_path, marker=".seen", content="it is another one", shared=shared)).problems
    absent = look_here(question(tmp_path, marker=".unseen", content="it is this one", shared=shared)).problems
    words = f"the run's folder {tmp_path} is not the same there: mount it under that path, or set folder to one that all nodes share"
    assert other == absent == {"folder": words, "weights": words}


def test_weights_in_a_folder_of_their_own_are_looked_for_there(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    marked: dict[str, object] = {"weights": weights, "marker": ".seen", "content": "it is this one", "shared_weights": (weights,)}
    asked_for = question(tmp_path / "run", **marked)
    what_to_do = "mount it under that path, or leave weights.folder out"
    assert look_here(asked_for).problems == {"weights": f"weights.folder {weights} is not there: {what_to_do}"}
    weights.mkdir()
    assert look_here(asked_for).problems == {"weights": f"weights.folder {weights} is not the same there: {what_to_do}"}
    (weights / ".seen").write_text("it is this one")
    assert look_here(asked_for).problems == {}


def test_parts_of_the_folder_that_are_elsewhere_must_be_the_same_too(tmp_path: Path) -> None:
    """Such as checkpoints that somebody has moved to a disk of the trainer's, with a link to them."""
    run, elsewhere = tmp_path / "run", tmp_path / "disk"
    elsewhere.mkdir()
    run.mkdir()
    (run / "checkpoints").symlink_to(elsewhere)
    with asking(config(), run, None) as whole:
        assert whole.shared == (run, run / "checkpoints")
        (run / "checkpoints").unlink()
        (run / "checkpoints").mkdir()
        problem = look_here(whole).problems["folder"]
        assert problem.startswith(f"the run's folder {run / 'checkpoints'} is not the same there: mount it")


def test_before_a_run_has_a_folder_the_one_that_it_will_be_in_is_looked_for(tmp_path: Path) -> None:
    runs = tmp_path / "shared" / "runs"
    with asking(config(weights={"folder": str(tmp_path)}), runs, None) as whole:
        assert (whole.shared, whole.shared_weights) == ((tmp_path,), (tmp_path,))
        problems = look_here(whole.model_copy(update={"shared": (tmp_path / "shared",)})).problems
    assert problems["folder"].startswith(f"the run's folder {runs} is not the same there")
    assert not problems.keys() & {"weights", "server", "logs"}
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said_with_whose_right_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write everywhere, so the system's answer is given here."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    (tmp_path / ".seen").write_text("here")
    problems = look_here(question(tmp_path, marker=".seen", content="here", shared=(tmp_path,))).problems
    assert problems["folder"] == f"{tmp_path} cannot be written there: give user {os.getuid()} the right to, or set folder to another place"
    problems = look_here(question(tmp_path / "run" / "r")).problems
    assert problems["logs"].startswith(f"{tmp_path / 'run' / 'r'} cannot be made, for {tmp_path} cannot be written there: give user")


def test_what_is_missing_is_named_with_its_path_and_its_setting(tmp_path: Path) -> None:
    problems = look_here(
        question(
            tmp_path, model=tmp_path / "model", files=(tmp_path / "train.jsonl",), reward=tmp_path / "reward.py", packages=("no-such",)
        )
    ).problems
    assert problems == {
        "model": f"model.path {tmp_path}/model has no config.json there: copy the model under that path, "
        "or name a folder that all nodes share",
        "data": f"{tmp_path}/train.jsonl (data.train_files or data.val_files) is not there: copy it under that path, "
        "or name a folder that all nodes share",
        "reward": f"{tmp_path}/reward.py (data.reward) is not there: copy it under that path, or name a folder that all nodes share",
        "packages": "no-such is not installed there: install requirements.lock on the node, or set cluster.runtime_env to {pip: …}",
    }


def test_a_server_that_is_not_in_reach_is_said_with_the_option_that_names_one(tmp_path: Path) -> None:
    """Such as an embedded one: it listens on a socket in the file system of one machine."""
    problem = look_here(question(tmp_path, url=f"unix://{tmp_path}/none.sock", server="x")).problems["server"]
    assert problem.startswith("the run's server is not in reach: no answer from unix://")
    assert problem.endswith("name one that every node reaches with --redis redis://HOST:PORT")


def test_another_server_under_the_same_url_is_not_the_runs(tmp_path: Path, redis_url: str) -> None:
    """As with redis://127.0.0.1 where each node has one."""
    with asking(config(), tmp_path, redis_url) as whole:
        assert "server" not in look_here(whole).problems
        problem = look_here(whole.model_copy(update={"server": "that-of-another-node"})).problems["server"]
    assert problem.startswith("another server answers there under the URL of the run's")


def test_nothing_stays_in_the_folder_of_what_was_asked(tmp_path: Path, redis_url: str) -> None:
    with asking(config(), tmp_path, redis_url) as whole:
        assert look_here(whole).problems == {}
        assert (tmp_path / whole.marker).read_text() == whole.content
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_the_driver_itself_cannot_write_into_is_refused(tmp_path: Path) -> None:
    gone, file = tmp_path / "gone", tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError, match=f"nothing can be written into {file} here: Not a directory; set folder to another place"):
        asking(config(), file, None).__enter__()
    with pytest.raises(ConfigError, match=f"nothing can be written into {gone} here: No such file or directory; make weights.folder there"):
        asking(config(weights={"folder": str(gone)}), tmp_path / "runs", None).__enter__()
    assert list(tmp_path.iterdir()) == [file]


def test_without_a_named_server_only_the_drivers_own_machine_will_reach_the_embedded_one(tmp_path: Path) -> None:
    with asking(config(), tmp_path, None) as whole:
        assert whole.host == host_of(machine_id())
        problem = look_here(whole.model_copy(update={"host": "another"})).problems["server"]
    assert problem.startswith("the run's server is not in reach: none is named, and an embedded one is for one machine; name one")


def test_each_service_needs_what_it_uses_and_no_more() -> None:
    settings = config(replicas={"standalone": 1, "hybrid": 1})
    needs = needs_of(plan_run(settings, "r", NODES), settings, folder_has_settings=False)
    assert needs == {
        "trainer": ("folder", "weights", "model"),
        "replica:s0": ("weights", "model"),
        "replica:h0": ("weights", "model"),
        "archiver": ("folder", "model"),
        "policy": ("folder",),
        "controller": (),
        "rollouter": ("reward",),
    }


def test_settings_that_are_other_than_planned_lie_in_the_folder_and_everybody_reads_them() -> None:
    settings = config()
    needs = needs_of(plan_run(settings, "r", NODES), settings, folder_has_settings=True)
    assert all("folder" in of_service for of_service in needs.values())


def test_a_scripted_run_needs_no_model_and_one_on_vllm_needs_vllm() -> None:
    scripted = config(model={"path": "scripted"}, rollout={"engine": "scripted"})
    needs = needs_of(plan_run(scripted, "r", NODES), scripted, folder_has_settings=False)
    assert not any("model" in of_service for of_service in needs.values())
    on_vllm = scripted.model_copy(update={"rollout": scripted.rollout.model_copy(update={"engine": "vllm"})})
    needs = needs_of(plan_run(scripted, "r", NODES), on_vllm, folder_has_settings=False)
    assert [service for service, of_service in needs.items() if "vllm" in of_service] == ["replica:s0", "replica:h0"]


def test_a_node_lacks_something_for_those_services_only_that_need_it() -> None:
    settings = config()
    needs = needs_of(plan_run(settings, "r", NODES), settings, folder_has_settings=False)
    assert judge(found(), needs) == {}
    assert judge(found(folder="no folder"), needs) == dict.fromkeys(["trainer", "archiver", "policy"], "no folder")
    assert judge(found(model="no model"), needs).keys() == {"trainer", "replica:s0", "replica:h0", "archiver"}
    assert judge(found(reward="no reward"), needs) == {"rollouter": "no reward"}
    assert judge(found(server="no server", model="no model"), needs) == dict.fromkeys(needs, "no server")


def test_a_service_without_a_node_for_it_is_refused_with_what_each_lacks() -> None:
    settings = config()
    plan = plan_run(settings, "r", NODES)
    needs = needs_of(plan, settings, folder_has_settings=False)
    lacks = [judge(found(model="model.path /m has no config.json there"), needs), judge(found(server="the server is not in reach"), needs)]
    nodes = [Node(f"id{number}", f"node-{number}", {"CPU": 4.0}, {"CPU": 4.0}, lacking) for number, lacking in enumerate(lacks)]
    with pytest.raises(ConfigError, match="no node has what trainer and replica:h0 need") as caught:
        place(plan, settings, nodes)
    assert "node-0: model.path /m has no config.json there; node-1: the server is not in reach" in str(caught.value)


def test_other_versions_than_the_run_is_planned_with_are_told() -> None:
    assert differences({"node-1": found()}, {"torch": "2.13.0", "transformers": "5.17"}) == []
    assert differences({"node-1": found()}, {"torch": "2.12.1"}) == [
        "node node-1 has torch 2.13.0, the run is planned with 2.12.1: training there may not be bit for bit the same"
    ]


def test_everybody_who_decides_is_asked_for() -> None:
    settings = config()
    assert set(DECIDERS) < needs_of(plan_run(settings, "r", NODES), settings, folder_has_settings=False).keys()


def test_what_is_asked_of_a_run_with_files_is_all_that_its_settings_name(tmp_path: Path) -> None:
    data = {"train_files": ["a.jsonl"], "val_files": ["b.jsonl"], "reward": "mine/reward.py:score"}
    settings = config(model={"path": "m"}, data=data, weights={"folder": str(tmp_path)})
    whole = asked(settings, tmp_path / "run")
    here = Path.cwd()
    assert (whole.model, whole.files, whole.reward) == (here / "m", (here / "a.jsonl", here / "b.jsonl"), here / "mine" / "reward.py")
    assert (whole.weights, whole.packages) == (tmp_path, ("torch", "transformers"))
    assert json.loads(whole.model_dump_json())["marker"] == ""
