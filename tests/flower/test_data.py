"""Finding the data sets that an app loads, and writing folders for them."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner

from tests.data.test_data import BATCHES, write_cifar, write_fashion
from thalweg import data
from thalweg.cli import app as cli
from thalweg.errors import PlanError
from thalweg.flower import data as flower_data
from thalweg.flower.dataset_calls import DatasetCall, dataset_calls

APPS = Path(__file__).parent / "apps"
CIFAR10 = "uoft-cs/cifar10"
MNIST = "ylecun/mnist"
FASHION = "zalando-datasets/fashion_mnist"
IRIS = "hitorilabs/iris"


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THALWEG_DATA", raising=False)


def app(folder: Path, source: str, config: str = "", **others: str) -> Path:
    """Make an app's folder with ``app/task.py`` and other modules of its package."""
    package = folder / "app"
    package.mkdir(parents=True)
    components = '[tool.flwr.app.components]\nserverapp = "app.task:server"\nclientapp = "app.task:client"\n'
    (folder / "pyproject.toml").write_text(f"{components}[tool.flwr.app.config]\n{config}")
    for name, text in {"__init__": "", "task": source, **others}.items():
        (package / f"{name}.py").write_text(text)
    return folder


IMPORT = "from flwr_datasets import FederatedDataset\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (IMPORT + "FederatedDataset(dataset='a/b', partitioners={})", DatasetCall("a/b", None, "app/task.py:2")),
        (
            "import flwr_datasets as fd\nfd.FederatedDataset(partitioners={}, dataset='a/b', subset='c')",
            DatasetCall("a/b", "c", "app/task.py:2"),
        ),
        ("import datasets\ndatasets.load_dataset('a/b', 'c')", DatasetCall("a/b", "c", "app/task.py:2")),
        ("from datasets import load_dataset as get\nget(path='a/b')", DatasetCall("a/b", None, "app/task.py:2")),
        (
            f"{IMPORT}NAME: str = 'a/b'\ndef f():\n    FederatedDataset(dataset=NAME)",
            DatasetCall("a/b", None, "app/task.py:4"),
        ),
        (
            f"{IMPORT}from app.names import NAME as N\nFederatedDataset(dataset=N)",
            DatasetCall("a/b", None, "app/task.py:3"),
        ),
        (
            f"{IMPORT}def f(context):\n    FederatedDataset(dataset=context.run_config['data.set'])",
            DatasetCall("from/config", None, "app/task.py:3"),
        ),
        (f"{IMPORT}def f(name):\n    FederatedDataset(dataset=name)", DatasetCall(None, None, "app/task.py:3")),
        (f"{IMPORT}N = 'a'\nN = 'b'\nFederatedDataset(dataset=N)", DatasetCall(None, None, "app/task.py:4")),
    ],
)
def test_calls_are_found(tmp_path: Path, source: str, expected: DatasetCall) -> None:
    folder = app(tmp_path, source, 'data.set = "from/config"', names="NAME = 'a/b'")
    assert dataset_calls(folder) == [expected]


def test_other_calls_are_none(tmp_path: Path) -> None:
    folder = app(tmp_path, "def load_dataset(name): pass\nload_dataset('a/b')\nprint('FederatedDataset')")
    (folder / "venv" / "lib").mkdir(parents=True)
    (folder / "venv" / "pyvenv.cfg").touch()
    (folder / "venv" / "lib" / "other.py").write_text(f"{IMPORT}FederatedDataset(dataset='a/b')")
    assert dataset_calls(folder) == []


def test_what_is_no_app_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"pyproject\.toml.*Name the folder of a Flower app"):
        dataset_calls(tmp_path)
    with pytest.raises(PlanError, match="cannot read"):
        dataset_calls(app(tmp_path / "broken", "def"))


def test_our_apps_ask_for_what_they_load() -> None:
    assert {call.name for call in dataset_calls(APPS / "torch_vision")} == {CIFAR10}
    assert [call.name for call in dataset_calls(APPS / "sklearn_iris")] == [IRIS]
    assert dataset_calls(APPS / "numpy_messages") == []


@pytest.mark.parametrize(("shape", "mode"), [((3, 5, 1), "L"), ((4, 2, 3), "RGB")])
def test_a_png_holds_the_same_pixels(shape: tuple[int, int, int], mode: str) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    image = Image.open(io.BytesIO(flower_data.png(pixels)))
    assert image.mode == mode
    np.testing.assert_array_equal(np.asarray(image).reshape(shape), pixels)


def test_mnist_is_written_as_the_hub_has_it(tmp_path: Path) -> None:
    made, unclear = flower_data.prepare(app(tmp_path / "app", ""), tmp_path, more=[MNIST])
    assert [(one.state, one.rows, one.substitute) for one in made] == [
        ("written", {"train": 4000, "test": 1000}, False)
    ]
    assert "5,000 of MNIST's 70,000 digits" in str(made[0].source)
    assert unclear == []
    table = read(tmp_path / MNIST, "test")
    assert table.column_names == ["image", "label"]
    _, test = data.load("mnist")
    assert table["label"].to_pylist() == test.labels.tolist()
    first = np.asarray(Image.open(io.BytesIO(table["image"][0]["bytes"].as_py())))
    np.testing.assert_array_equal(first, test.images[0, 0, 2:30, 2:30])
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features["label"]["names"] == [str(digit) for digit in range(10)]


def read(folder: Path, split: str) -> Any:
    """Return the table of a split."""
    (path,) = folder.glob(f"{split}-*.parquet")
    return pq.read_table(path)


def pixels(cell: Any) -> Any:
    return np.asarray(Image.open(io.BytesIO(cell["bytes"].as_py())))


def test_cifar10_is_written_from_its_files(tmp_path: Path) -> None:
    batches = write_cifar(tmp_path / "files", "bin")
    folder = app(tmp_path / "app", f"{IMPORT}FederatedDataset(dataset='{CIFAR10}', subset='plain_text')")
    (one,), _ = flower_data.prepare(folder, tmp_path, root=tmp_path / "files")
    assert (one.state, one.where, one.rows) == ("written", ("app/task.py:2",), {"train": 30, "test": 9})
    table = read(tmp_path / CIFAR10, "test")
    images, labels = batches[BATCHES[-1]]
    assert table["label"].to_pylist() == labels
    for cell, image in zip(table["img"], images, strict=True):
        np.testing.assert_array_equal(pixels(cell), image.reshape(3, 32, 32).transpose(1, 2, 0))


def test_fashion_mnist_is_written_from_its_files(tmp_path: Path) -> None:
    parts = write_fashion(tmp_path / "files", packed=False)
    flower_data.prepare(app(tmp_path / "app", ""), tmp_path, more=[FASHION], root=tmp_path / "files")
    table = read(tmp_path / FASHION, "train")
    np.testing.assert_array_equal(pixels(table["image"][3]), parts["train"][0][3])


def test_iris_has_the_columns_of_the_hub(tmp_path: Path) -> None:
    flower_data.prepare(APPS / "sklearn_iris", tmp_path)
    table = read(tmp_path / IRIS, "train").to_pydict()
    assert list(table) == ["petal_length", "petal_width", "sepal_length", "sepal_width", "species"]
    assert [column[0] for column in table.values()] == [1.4, 0.2, 5.1, 3.5, 0]
    assert table["species"] == [0] * 50 + [1] * 50 + [2] * 50


def test_an_unknown_data_set_is_reported_and_nothing_is_written(tmp_path: Path) -> None:
    source = (
        f"{IMPORT}FederatedDataset(dataset='{CIFAR10}')\nFederatedDataset(dataset='a/b')\nFederatedDataset(dataset=x)"
    )
    made, unclear = flower_data.prepare(app(tmp_path / "app", source), tmp_path / "to")
    assert [(one.name, one.state, one.where) for one in made] == [
        ("a/b", "missing", ("app/task.py:3",)),
        (CIFAR10, "missing", ("app/task.py:2",)),
    ]
    assert "thalweg does not have a/b" in str(made[0].reason)
    assert "--substitute digits" in str(made[1].hint)
    assert [call.where for call in unclear] == ["app/task.py:4"]
    assert not (tmp_path / "to").exists()


def test_digits_replace_images_only_if_asked_and_the_folder_says_so(tmp_path: Path) -> None:
    folder = app(tmp_path / "app", f"{IMPORT}FederatedDataset(dataset='{CIFAR10}')")
    (one,), _ = flower_data.prepare(folder, tmp_path, substitute="digits")
    assert (one.state, one.substitute) == ("written", True)
    note = (tmp_path / CIFAR10 / "README.md").read_text()
    assert "Substitute: the digits of scikit-learn" in note
    assert f"accuracy on them says nothing of {CIFAR10}" in note
    table = read(tmp_path / CIFAR10, "train")
    train, _ = data.load("digits")
    np.testing.assert_array_equal(pixels(table["img"][0]), train.images[0].transpose(1, 2, 0))
    # The existing folder's label is reported, also if this call does not ask for a substitute.
    (again,), _ = flower_data.prepare(folder, tmp_path)
    assert (again.state, again.substitute, again.source) == ("kept", True, one.source)
    with pytest.raises(PlanError, match="cannot replace"):
        flower_data.prepare(folder, tmp_path, substitute="cifar10")


def test_a_substitute_never_replaces_what_thalweg_has(tmp_path: Path) -> None:
    (one,), _ = flower_data.prepare(app(tmp_path / "app", ""), tmp_path, more=[MNIST], substitute="digits")
    assert not one.substitute


def test_a_folder_of_somebody_else_is_kept(tmp_path: Path) -> None:
    (tmp_path / MNIST).mkdir(parents=True)
    (one,), _ = flower_data.prepare(app(tmp_path / "app", ""), tmp_path, more=[MNIST])
    assert (one.state, one.source) == ("kept", None)
    assert list((tmp_path / MNIST).iterdir()) == []


@pytest.mark.parametrize("name", ["/etc/passwd", "../up", ".", "a/../../b"])
def test_names_lead_to_no_other_folder(tmp_path: Path, name: str) -> None:
    (one,), _ = flower_data.prepare(app(tmp_path / "app", ""), tmp_path, more=[name])
    assert one.state == "missing"
    assert "no name of a data set" in str(one.reason)


def test_another_configuration_of_a_data_set_is_refused(tmp_path: Path) -> None:
    folder = app(tmp_path / "app", f"{IMPORT}FederatedDataset(dataset='{MNIST}', subset='rotated')")
    (one,), _ = flower_data.prepare(folder, tmp_path)
    assert (one.state, one.reason) == ("missing", f"thalweg does not have {MNIST} as 'rotated'")


def test_a_folder_is_written_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = app(tmp_path / "app", "")

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(OSError, match="no space left"):
        flower_data.prepare(folder, tmp_path, more=[IRIS])
    assert list((tmp_path / "hitorilabs").iterdir()) == []


def test_damaged_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "iris.csv").write_text("150,4\n1,2,3\n")
    monkeypatch.setattr(flower_data, "packaged", lambda package, file: tmp_path / "iris.csv")
    (one,), _ = flower_data.prepare(app(tmp_path / "app", ""), tmp_path, more=[IRIS])
    assert "is not 150 rows of 5 numbers" in str(one.reason)


def test_the_command_says_what_it_wrote_and_what_it_cannot_make(tmp_path: Path) -> None:
    folder = app(tmp_path / "app", f"{IMPORT}FederatedDataset(dataset='{IRIS}')\nFederatedDataset(dataset='a/b')")
    done = CliRunner().invoke(cli, ["flower", "data", str(folder), "--to", str(tmp_path), "--json"])
    assert done.exit_code == 1
    printed = json.loads(done.stdout)
    assert {one["name"]: one["state"] for one in printed["datasets"]} == {IRIS: "written", "a/b": "missing"}
    assert printed["environment"] == {"HF_HUB_OFFLINE": "1"}
    (folder / "app" / "task.py").write_text(f"{IMPORT}FederatedDataset(dataset=some)")
    done = CliRunner().invoke(cli, ["flower", "data", str(folder), "--to", str(tmp_path), "--dataset", IRIS])
    assert done.exit_code == 1
    assert "exists already: the iris data of scikit-learn" in done.stdout
    assert "app/task.py:2: the source does not name the data set" in done.stderr
    done = CliRunner().invoke(cli, ["flower", "data", str(APPS / "numpy_messages"), "--to", str(tmp_path)])
    assert (done.exit_code, "asks flwr_datasets for nothing" in done.stdout) == (0, True)


LOAD = f"""
import os
from datasets import load_dataset
from flwr_datasets import FederatedDataset
flowers = FederatedDataset(dataset="{IRIS}", partitioners={{"train": 3}}).load_partition(1)
digits = FederatedDataset(dataset="{MNIST}", subset="mnist", partitioners={{"train": 4}}).load_partition(0)
test = load_dataset("{CIFAR10}", split="test")
os.chdir("../substitute")
other = load_dataset("{CIFAR10}", split="test")
print(len(flowers), len(digits), digits[0]["image"].size, test.features["label"].names[9], len(test), len(other))
"""


@pytest.mark.skipif(importlib.util.find_spec("flwr_datasets") is None, reason="flwr_datasets is not installed")
def test_flwr_datasets_loads_each_folder_without_a_network(tmp_path: Path) -> None:
    write_cifar(tmp_path / "files", "bin")
    folder = app(tmp_path / "app", "")
    (tmp_path / "real").mkdir()
    flower_data.prepare(folder, tmp_path / "real", more=[IRIS, MNIST, CIFAR10], root=tmp_path / "files")
    flower_data.prepare(folder, tmp_path / "substitute", more=[CIFAR10], substitute="digits")
    own = {"HF_HOME": str(tmp_path / "cache"), "FLWR_TELEMETRY_ENABLED": "0", **flower_data.ENVIRONMENT}
    done = subprocess.run(
        [sys.executable, "-c", LOAD],
        cwd=tmp_path / "real",
        env={**os.environ, **own},
        check=False,
        capture_output=True,
        text=True,
    )
    # Two folders of the same name in one process: ``datasets`` must not return one folder's cached data for the other.
    assert done.stdout.split("\n")[-2:] == ["50 1000 (28, 28) truck 9 359", ""], done.stderr
