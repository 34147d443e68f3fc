"""The examples for one and for eight GPUs: they load, fit such machines, and say of memory what is so."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from bus.errors import ConfigError
from services.config import RunConfig
from services.config_file import make_config
from services.devices import Machine, assign_devices
from services.engines.vllm_arguments import engine_arguments
from services.plan import plan_run
from services.planned import config_of, engine_config
from tests.services.data.folders import make_folder

FOLDER = Path(__file__).parent.parent / "examples" / "qwen"
ONE, EIGHT = FOLDER / "1-gpu.yaml", FOLDER / "8-gpu.yaml"
GSM8K = [
    {"question": f"Ann has {number} pens and buys {number} more. How many has she?", "answer": f"{number}+{number}\n#### {2 * number:,}"}
    for number in range(600)
]


@pytest.fixture
def data(tmp_path: Path) -> dict[str, str]:
    """Files with the columns of GSM8K."""
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "rows.parquet"
    parquet.write_table(arrow.Table.from_pylist(GSM8K), path)
    return {"train_files": str(path), "val_files": str(path)}


def example(path: Path, model: Path, data: dict[str, str]) -> RunConfig:
    """With a model and data that are there, in the place of those that are to be downloaded."""
    settings = yaml.safe_load(path.read_text())
    settings["model"]["path"] = str(model)
    settings["data"] |= data
    return make_config(settings, str(path))


@pytest.mark.parametrize(
    ("path", "gpus", "devices"),
    [
        (ONE, 1, {"trainer": "cuda:0", "replica:h0": "cuda:0"}),
        (EIGHT, 8, {"trainer": "cuda:0", "replica:h0": "cuda:0"} | {f"replica:s{number}": f"cuda:{number + 1}" for number in range(7)}),
    ],
)
def test_the_examples_fit_machines_with_so_many_gpus(
    path: Path, gpus: int, devices: dict[str, str], tmp_path: Path, data: dict[str, str]
) -> None:
    model = make_folder(tmp_path / "model", config={"torch_dtype": "bfloat16", "max_position_embeddings": 32768})
    config = example(path, model, data)
    plan = plan_run(config, "r1", Machine((0, 1), gpus=gpus))
    assert plan.devices == devices
    assert plan.total_steps > 0
    assert plan.num_validation == min(len(GSM8K), config.data.val_prompts or len(GSM8K))
    resolved = config_of(plan)
    assert resolved.weights.dtype == "bfloat16"
    assert plan.max_logprob_diff == 0.05
    arguments = engine_arguments(engine_config(resolved, plan), model, "cuda:0")
    assert (arguments["dtype"], arguments["max_num_seqs"], arguments["enable_sleep_mode"]) == ("bfloat16", 256, True)
    with pytest.raises(ConfigError, match=f"this machine has {gpus - 1}"):
        assign_devices(config, Machine((0, 1), gpus=gpus - 1))


def test_the_example_with_replicas_of_two_gpus_fits_too(tmp_path: Path, data: dict[str, str]) -> None:
    """As its comment says it is done."""
    model = make_folder(tmp_path / "model", config={"max_position_embeddings": 32768})
    pairs = {f"replica:s{number}": f"cuda:{2 * number + 1},cuda:{2 * number + 2}" for number in range(3)}
    config = example(EIGHT, model, data).model_copy(update={"devices": {"trainer": "cuda:0", "replica:h0": "cuda:0"} | pairs})
    config = config.model_copy(update={"replicas": config.replicas.model_copy(update={"standalone": 3})})
    plan = plan_run(config, "r1", Machine((0, 1), gpus=8))
    assert plan.devices["replica:s2"] == "cuda:5,cuda:6"
