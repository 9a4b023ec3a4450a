"""The parts of Flower's internals that thalweg uses. A Flower release that moves one fails here first."""

from __future__ import annotations

import ast
import inspect
import os
import sys
import textwrap
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

import thalweg.flower
from thalweg.errors import PlanError

PACKAGE = Path(thalweg.flower.__file__).parent
PUBLIC = {"flwr.app", "flwr.serverapp", "flwr.clientapp", "flwr.serverapp.strategy"}


def imported(path: Path) -> set[str]:
    """Return the modules of Flower that a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    found = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    found |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {name for name in found if name.partition(".")[0] == "flwr"}


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.stem)
def test_only_public_modules_are_imported_and_internals_in_one_place(path: Path) -> None:
    assert imported(path) <= PUBLIC
    named = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
    internals = {name for name in named if isinstance(name, str) and name.startswith("flwr.") and name not in PUBLIC}
    assert not internals or path.stem == "compat"


def test_telemetry_is_off_before_flower_is_imported() -> None:
    assert os.environ["FLWR_TELEMETRY_ENABLED"] == "0"


def test_without_flower_the_hint_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_not_found(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(thalweg.flower, "version", raise_not_found)
    with pytest.raises(PlanError, match=r"Flower is not installed.*pip install 'thalweg\[flower\]'"):
        thalweg.flower.require()


def test_an_old_flower_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thalweg.flower, "version", lambda name: "1.21.0")
    with pytest.raises(PlanError, match=r"Flower 1\.21\.0 is installed, and thalweg needs 1\.22"):
        thalweg.flower.require()
    monkeypatch.setattr(thalweg.flower, "version", lambda name: "2.0.dev20261101")
    assert thalweg.flower.require() == "2.0.dev20261101"


def test_the_nodes_that_flower_waits_for_are_known() -> None:
    pytest.importorskip("flwr", reason="Flower is not installed")
    from flwr.serverapp.strategy.strategy_utils import sample_nodes

    from thalweg.flower import compat

    found = []

    class Nodes:
        def get_node_ids(self) -> list[int]:
            found.append(compat.nodes_waited_for(sys._getframe(1)))
            return [1, 2, 3]

    sample_nodes(Nodes(), min_available_nodes=2, sample_size=3)  # type: ignore[arg-type]
    Nodes().get_node_ids()
    assert found == [3, 0]


def test_a_legacy_app_that_waits_for_nodes_is_known() -> None:
    pytest.importorskip("flwr", reason="Flower is not installed")
    from flwr.server import SimpleClientManager
    from flwr.server.compat.app_utils import start_update_client_manager_thread

    from thalweg.flower import compat

    looks, wanted = [], []

    class Nodes:
        def get_node_ids(self) -> list[int]:
            looks.append(compat.only_looks(sys._getframe(1)))
            return []

    class OverError(Exception):
        pass

    def watch(number: int) -> None:
        wanted.append(number)
        if len(wanted) == 2:
            raise OverError

    manager, before = SimpleClientManager(), SimpleClientManager.wait_for
    with compat.legacy_waits(watch):
        thread, stop, registered = start_update_client_manager_thread(Nodes(), manager)  # type: ignore[arg-type]
        registered.wait()
        with pytest.raises(OverError):
            manager.sample(3, min_num_clients=5)
        stop.set()
        thread.join()
        assert not manager.wait_for(1, timeout=0)
        assert manager.wait_for(0)
    assert (looks[0], wanted) == (True, [5, 5, 1])
    assert SimpleClientManager.wait_for is before
    Nodes().get_node_ids()
    assert not looks[-1]


def test_messages_can_be_named_and_assembled() -> None:
    pytest.importorskip("flwr", reason="Flower is not installed")
    from flwr.app import Error, Message, Metadata, RecordDict

    from thalweg.flower import compat

    compat.identify(5)
    message = compat.name(Message(RecordDict(), 9, "train"), "an id")
    assert (message.metadata.message_id, message.metadata.run_id in (0, 5)) == ("an id", True)
    told: dict[str, Any] = {
        "run_id": 5, "message_id": "m", "src_node_id": 1, "dst_node_id": 2, "reply_to_message_id": "", "group_id": "",
        "created_at": 1.0, "ttl": 2.0, "message_type": compat.SYSTEM,
    }  # fmt: skip
    assert compat.assemble(Metadata(**told), RecordDict()).has_content()
    assert compat.assemble(Metadata(**told), Error(3)).error.code == 3


def test_a_run_is_flowers_own() -> None:
    pytest.importorskip("flwr", reason="Flower is not installed")
    from thalweg.flower import compat

    kind = compat.run_class()
    assert kind is not None
    run = compat.new_run(5, {"a": 1})
    assert isinstance(run, kind)
    assert (run.run_id, run.override_config) == (5, {"a": 1})


def test_strategies_are_made_as_folding_takes_them_to_be() -> None:
    pytest.importorskip("flwr", reason="Flower is not installed")
    from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi, Strategy

    from thalweg.flower import fold

    assert fold._CHECK is not None, "FedAvg checks replies in a method of its own"
    for kind in (FedAvg, FedAvgM, FedAdam, FedYogi, FedAdagrad):
        assert fold.weighted_key(kind()) == "num-examples"
        source = inspect.getsource(kind.aggregate_train)
        assert kind is FedAvg or "super().aggregate_train(" in source, "it takes the mean by FedAvg's"
    assert {"grid", "num_rounds", "evaluate_fn", "timeout"} <= set(inspect.signature(Strategy.start).parameters)
    assert "grid.send_and_receive(" in inspect.getsource(Strategy.start)


def test_flowers_loop_of_rounds_reads_the_initial_arrays_only_before_the_first_round() -> None:
    pytest.importorskip("flwr", reason="Flower is not installed")
    from flwr.serverapp.strategy import Strategy

    function = ast.parse(textwrap.dedent(inspect.getsource(Strategy.start))).body[0]
    (loop,) = [node for node in ast.walk(function) if isinstance(node, ast.For) and "num_rounds" in ast.dump(node.iter)]
    late = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and node.id == "initial_arrays" and node.lineno >= loop.lineno
    ]
    assert not late, "fold.Loop frees them when the second round trains from others"
