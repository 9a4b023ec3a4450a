"""The core's options, made from plans."""

from __future__ import annotations

from pathlib import Path

from thalweg import _core, wire
from thalweg.plan import Plan
from thalweg.plan.options import client_options, node_options, of_both_ends, server_options
from thalweg.transports.links import Login, Tls, Trust

FAULT = {
    "seed": 0, "loss": 0.5, "duplicate": 0.0, "reorder": 0.0, "corrupt": 0.0, "delay_ms": 0.0, "jitter_ms": 0.0,
    "cut_after": None,
}  # fmt: skip


def test_options_follow_from_the_plan() -> None:
    plan = Plan.loads(
        """
        [job]
        clients = 3
        enough = 2
        deadline = 5
        [transport]
        congestion = "reno"
        streams = 2
        fanout = "sequential"
        gather = "in-order"
        chunk = "64KiB"
        [aggregation]
        deterministic = true
        [repair]
        resend = false
        policy = "last"
        spread = true
        [layers]
        throttle = "3g"
        [layers.fault]
        loss = 0.5
        """
    )
    options = server_options(plan, Trust(token="t"))
    assert options["transport"] == {"congestion": "reno", "streams": 2, "tls": None}
    assert (options["expected"], options["enough"], options["deadline"]) == (3, 2, 5)
    assert (options["precision"], options["chunk"], options["token"]) == ("exact", 65536, "t")
    assert (options["fanout"], options["gather"]) == ("sequential", "in-order")
    unnamed: dict[str, object] = {"critical": [], "budgets": {}, "refuse": {}}
    assert options["repair"] == {"resend": False, "policy": "last", "spread": True, **unnamed}
    assert options["layers"]["throttle"] == "5000000bit"
    assert options["layers"]["fault"] == FAULT
    assert "issuer" not in options
    assert "staging" not in options
    client = client_options(plan, Trust(token="t"), seed=4)
    assert (client["seed"], client["token"], client["layers"]) == (4, "t", options["layers"])


def test_sealed_updates_are_an_option_of_both_ends() -> None:
    plan = Plan.loads("[security]\ntls = 'on'\n[layers.seal]\ncipher = 'chacha20-poly1305'\nrecord = '4KiB'")
    sealed = {"cipher": "chacha20-poly1305", "record": 4096, "loss": 0.01}
    assert server_options(plan, Trust())["layers"] == {"seal": sealed}
    assert client_options(plan, Trust(), seed=4)["layers"] == {"seal": sealed}
    chosen = Plan.loads("[security]\ntls = 'on'\n[layers.seal]\nrecord = 'auto'\nloss = 0.001")
    assert of_both_ends(chosen) == {"seal": {"cipher": "aes-256-gcm", "record": None, "loss": 0.001}}
    assert chosen.layers.emulation() == {}


def test_compressed_updates_are_an_option_of_both_ends() -> None:
    plan = Plan.loads("[layers.compress]\nformat = 'int8'")
    assert (
        server_options(plan, Trust())["layers"] == client_options(plan, Trust(), seed=4)["layers"] == of_both_ends(plan)
    )
    assert of_both_ends(plan) == {"compress": {"format": "int8"}}
    assert of_both_ends(Plan.loads("[layers.compress]")) == {"compress": {"format": "f16"}}


def test_a_compression_is_an_option_of_both_ends() -> None:
    plan = Plan.loads("[compression]\nscheme = 'topk:0.01'")
    layers = {"compress": {"scheme": "topk:0.01"}}
    assert server_options(plan, Trust())["layers"] == client_options(plan, Trust(), seed=4)["layers"] == layers
    assert of_both_ends(plan) == layers
    assert plan.layers.emulation() == {}


def test_a_compression_of_the_way_down_is_an_option_of_both_ends() -> None:
    plan = Plan.loads("[compression]\nscheme = 'int4'\ndown = 'int8'")
    layers = {"compress": {"scheme": "int4", "down": "int8"}}
    assert server_options(plan, Trust())["layers"] == client_options(plan, Trust(), seed=4)["layers"] == layers
    assert of_both_ends(plan) == layers


def test_without_enough_one_update_is() -> None:
    assert server_options(Plan.of({}), Trust())["enough"] == 1


def test_a_login_comes_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "login"
    file.write_text("ada:pass:word\n")
    plan = Plan.of({"security": {"login_file": str(file)}, "transport": {"options": {"qos": 1}}})
    transport = client_options(plan, Trust(), seed=0)["transport"]
    assert transport["login"] == Login("ada", "pass:word")
    assert transport["own"] == {"qos": 1}


def test_options_of_a_node_follow_from_the_plan() -> None:
    plan = Plan.loads(
        """
        [job]
        graph = "ring"
        rounds = 6
        seed = 7
        wait = "first-chunk"
        deadline = 0.4
        ahead = 3
        liveness = 2.0
        [transport]
        client_congestion = ["reno", "cubic"]
        chunk = "64KiB"
        [aggregation]
        weights = "renormalise"
        precision = "f64"
        [layers.fault]
        loss = 0.5
        """
    )
    tls = Tls("a", None, require_client=True)
    trust = Trust(token="t", own_token="o", tls=tls)
    options = node_options(plan, trust, number=2, job=5, digests={"plan": "p", "graph": "g", "start": "s"})
    assert options["transport"] == {"congestion": "cubic", "streams": 1, "tls": tls}
    assert (options["seed"], options["job"], options["chunk"], options["liveness"]) == (9, 5, 65536, 2.0)
    assert options["rounds"] == 6
    assert (options["wait"], options["deadline"], options["ahead"]) == ("first-chunk", 0.4, 3)
    assert (options["mixing"], options["precision"]) == ("renormalise", "f64")
    assert (options["token"], options["own_token"]) == ("t", "o")
    assert (options["plan"], options["graph"], options["start"]) == ("p", "g", "s")
    assert options["layers"]["fault"] == FAULT
    assert "issuer" not in options


def test_the_core_takes_all_options_of_a_node() -> None:
    plan = Plan.loads("[job]\ngraph = 'ring'\nwait = 'deadline'\nahead = 2\n[layers]\nthrottle = '4g'")
    options = node_options(plan, Trust(token="00" * 32, own_token="00" * 32), number=1, job=1, digests={"plan": "p"})
    node = _core.Node(_core.Arena(_core.Layout([("w", "F32", [4])])), "a", "tcp://127.0.0.1:0", wire.encode(options))
    node.close("it was only looked at")
