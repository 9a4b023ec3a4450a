"""Plans: which are refused, and the text of the errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from thalweg import algorithms
from thalweg.cli.plans import assemble
from thalweg.errors import ModelError, PlanError, ThalwegError
from thalweg.plan import Plan


@pytest.mark.parametrize(
    ("text", "cause", "hint"),
    [
        ("[job]\nrunds = 3", "unknown key 'runds' in [job]", "Did you mean 'rounds'?"),
        ("[jib]\nrounds = 3", "unknown key 'jib'", "Did you mean 'job'?"),
        ("[job]\nmomentum = 0.5", "unknown key 'momentum' in [job]", "Move it to [training]"),
        ("rounds = 3", "unknown key 'rounds'", "Move it to [job]"),
        ("[layers.fault]\nlos = 0.1", "unknown key 'los' in [layers.fault]", "Did you mean 'loss'?"),
        ("[network]\nprofil = 'wan'", "unknown key 'profil' in [network]", "Did you mean 'profile'?"),
        ("[network.up]\nlos = 0.1", "unknown key 'los' in [network.up]", "Did you mean 'loss'?"),
        ("[network.clients.c-1]\nlos = 0", "unknown key 'los' in [network.clients.c-1]", "Did you mean 'loss'?"),
        ("[network.clients.c.up]\nlos = 0", "unknown key 'los' in [network.clients.c.up]", "Did you mean 'loss'?"),
        (
            "[[network.changes]]\nat = 1\n[[network.changes]]\nat = 2\nlos = 1",
            "unknown key 'los' in [[network.changes]] 2",
            "Did you mean 'loss'?",
        ),
        ("[[network.changes]]\nloss = 1", "at in [[network.changes]] 1 is missing", "Give at: time after"),
        ("[stress]\ncpus = 99", "unknown key 'cpus' in [stress]", "Did you mean 'cpu'?"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(text: str, cause: str, hint: str) -> None:
    with pytest.raises(PlanError) as caught:
        Plan.loads(text, "my.toml")
    assert caught.value.cause == f"my.toml: {cause}"
    assert caught.value.hint.startswith(hint)


def test_a_plan_names_its_algorithm() -> None:
    plan = Plan.loads("[algorithm]\nname = 'fedavg'")
    assert plan.to_toml() == Plan.of({}).to_toml(), "it is the default"
    assert '[algorithm]\nname = "fedavg"' in plan.to_toml()
    with pytest.raises(PlanError, match="unknown algorithm 'fedavgg'") as caught:
        Plan.loads("[algorithm]\nname = 'fedavgg'")
    assert caught.value.hint.startswith("Did you mean 'fedavg'? Known: fedavg, fedavgm, fedadam, ")
    assert caught.value.hint.endswith(", dpsgd, choco")


def test_another_algorithm_is_another_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(algorithms.ALGORITHMS, "other", replace(algorithms.find("fedavg"), name="other"))
    other = Plan.of({"algorithm": {"name": "other"}})
    assert Plan.of({}).differences(other) == ["algorithm.name: 'fedavg', 'other'"]


@pytest.mark.parametrize(
    ("said", "chosen", "participants"), [("", None, 64), ("8", 8, 8), ("0.125", 8, 8), ("0.001", 1, 1), ("1.0", 64, 64)]
)
def test_a_round_chooses_a_number_or_a_share(said: str, chosen: int | None, participants: int) -> None:
    plan = Plan.loads("[job]\nclients = 64\n" + (f"choose = {said}" if said else ""))
    assert (plan.chosen, plan.participants) == (chosen, participants)
    assert Plan.loads(plan.to_toml()) == plan


def test_tensors_are_named_by_patterns() -> None:
    plan = Plan.loads('[repair]\ncritical = ["*.bias"]\n[repair.budgets]\n"conv*" = 0.05')
    assert (plan.repair.critical, plan.repair.budgets, plan.repair.refuse) == (["*.bias"], {"conv*": 0.05}, {})
    assert Plan.loads(plan.to_toml()) == plan


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("[job]\nrounds = '3'", "rounds in [job] is '3', not a whole number"),
        ("[job]\nrounds = 2.5", "rounds in [job] is 2.5, not a whole number"),
        ("[job]\nrounds = true", "rounds in [job] is True, not a whole number"),
        ("[job]\nrounds = 0", "rounds in [job] is 0, not at least 1"),
        ("[job]\ngrace = inf", "grace in [job] is inf, not a finite number"),
        ("[training]\nmomentum = 1", "momentum in [training] is 1, not less than 1.0"),
        ("[aggregation]\npartial = 'some'", "partial in [aggregation] is 'some', not 'discard' or 'keep'"),
        ("[repair]\nbudgets = { 'conv*' = 1.5 }", "budgets in [repair] is 1.5, not at most 1.0"),
        ("[repair]\ncritical = 'fc.bias'", "critical in [repair] is 'fc.bias', not a list"),
        ("[job]\nchoose = 0", "choose in [job] is 0, not at least 1"),
        ("[job]\nchoose = 1.5", "choose in [job] is 1.5, not"),
        ("[repair]\npolicy = 'half'", "policy in [repair] is 'half', not 'renormalise', 'keep-local', 'zero'"),
        ("[transport]\nurl = 3", "url in [transport] is 3, not text in quotes"),
        ("[layers]\nfault = 3", "fault in [layers] is 3, not a table"),
        ("[layers.fault]\nloss = 2", "loss in [layers.fault] is 2, not at most 1.0"),
        ("[layers.seal]\ncipher = 'rot13'", "cipher in [layers.seal] is 'rot13', not 'aes-256-gcm', 'chacha20-poly"),
        ("[layers.seal]\nrecord = 15", "record in [layers.seal] is 15, not at least 16"),
        ("[layers.seal]\nrecord = '5MiB'", "record in [layers.seal] is '5MiB', not at most 4194304"),
        ("[hosts.clients]\na = 3", "clients in [hosts] is 3, not text in quotes"),
        ("job = 3", "job is 3, not a table"),
        ("network = 3", "network is 3, not a table"),
        ("[network]\nclients = 3", "clients in [network] is 3, not a table"),
        ("[network.clients]\nc = 3", "c in [network.clients] is 3, not a table"),
        ("[network.clients.c]\nrate = -1", f"rate in [network.clients.c] is -1, not from 1 to {10**15} bits a second"),
        ("[network]\nchanges = [3]", "changes in [network] is 3, not a table"),
        ("[[network.changes]]\nat = -1", "at in [[network.changes]] 1 is -1, not from 0 to 1e+09"),
        ("[network]\nrate = true", "rate in [network] is True, not bits a second"),
        ("[network]\nrate = 2.5", f"rate in [network] is 2.5, not from 1 to {10**15} bits a second"),
        ("[network]\nloss = nan", "loss in [network] is nan, not a fraction as 0.01"),
        ("[network]\nloss = [0.1]", "loss in [network] is [0.1], not a fraction as 0.01"),
        ("[network]\nloss = [0.2, 0.1]", "loss in [network] is [0.2, 0.1], not a fraction as 0.01"),
        ("[network]\nqueue = 100", "queue in [network] is 100, not bytes (at least 1500)"),
        ("[network]\ntopology = 3", "topology in [network] is 3, not text in quotes"),
        ("[network]\ntime_scale = 0", "time_scale in [network] is 0, not a factor"),
        ("[network.tcp]\nsend_buffer = 10", "send_buffer in [network.tcp] is 10, not at least 4096"),
        ("[network.burst]\nenter = 2\nleave = 1", "enter in [network.burst] is 2, not from 0 to 1"),
        ("[stress]\ncpu = 101", "cpu in [stress] is 101, not more than 0 and at most 100 percent"),
        ("[stress]\ncpu_quota = 0", "cpu_quota in [stress] is 0, not from 0.01 to 1024 cores"),
        ("[stress]\nparties = []", "parties in [stress] is [], not"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(text: str, cause: str) -> None:
    with pytest.raises(PlanError) as caught:
        Plan.loads(text, "my.toml")
    assert caught.value.cause.startswith(f"my.toml: {cause}")
    assert caught.value.hint.startswith("Give ")


def test_a_size_says_how_sizes_are_written() -> None:
    with pytest.raises(PlanError, match="as 8MiB") as caught:
        Plan.loads("[transport]\nsend_buffer = '8 XB'")
    assert "'8 XB'" in caught.value.cause


def test_all_wrong_keys_are_named_at_once() -> None:
    text = "[job]\nroundz = 1\nclients = 0\nchoose = 'x'\n[training]\nrounds = 3\n[network]\nlos = 1\n[app]\n"
    with pytest.raises(PlanError) as caught:
        Plan.loads(text, "my.toml")
    assert caught.value.cause == (
        "my.toml: 6 keys are wrong: clients in [job] is 0, not at least 1; choose in [job] is 'x', not a whole number; "
        "unknown key 'roundz' in [job] (did you mean 'rounds'?); "
        "unknown key 'rounds' in [training] (move it to [job]); "
        "unknown key 'los' in [network] (did you mean 'loss'?); object in [app] is missing"
    )
    assert caught.value.hint == "Correct each of them"


def test_another_kind_of_file_does_not_fill_the_terminal() -> None:
    with pytest.raises(PlanError, match=r"40 keys are wrong: .*; unknown key 'k19'; and 20 more\."):
        Plan.of({f"k{number}": 1 for number in range(40)})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[job]\nclients = 2\nenough = 3", "2 clients cannot need 3 updates"),
        ("[job]\nclients = 64\nchoose = 8\nenough = 9", "8 clients cannot need 9 updates"),
        ("[job]\nclients = 2\nchoose = 3", "choose 3 of 2 clients"),
        ("[aggregation]\ndeterministic = true\nprecision = 'f32'", "deterministic needs precision exact"),
        ("[aggregation]\npartial = 'keep'\nstaging = '1GiB'", "stages nothing"),
        ("[repair]\npolicy = 'zero'", "need no stand-in"),
        ("[repair]\nspread = true", "lost values are sent again"),
        ("[repair]\nrefuse = { w = 0.5 }\n[aggregation]\npartial = 'keep'", "folds each chunk on arrival"),
        ("[repair]\nspread = true\nresend = false\npolicy = 'fedcomm-legacy'", "so the order must not change"),
        ("[repair]\nresend = false\npolicy = 'zero'\n[aggregation]\npartial = 'keep'", "folds each chunk on arrival"),
        ("[layers.seal]", "the links are not encrypted"),
        ("[layers.seal]\n[security]\ntls = 'off'\npki = 'here'", "the links are not encrypted"),
        ("[model]\nname = 'payload:8MiB'\n[data]\nname = 'mnist'", "not trained, but the plan has [data]"),
        ("[model]\nname = 'payload:8MiB'\n[training]\nbatch = 1", "not trained, but the plan has [training]"),
        ("[training]\ncompute = '2s'", "vgg5 is really trained"),
        ("[model]\nname = 'payload:8MiB'\n[record]\ncheckpoint_every = 1", "needs no checkpoints"),
        ("[job]\nclients = 3\n[hosts]\nclients = ['a', 'b']", "[hosts] names 2 clients where job.clients is 3"),
        ("[network]\nemulator = 'netem'", "netem is not there yet"),
        (
            "[transport]\ncongestion = 'bbr'\n[network]\ntcp = { congestion = 'cubic' }",
            "network.tcp.congestion makes all connections cubic, and [transport] asks for bbr",
        ),
        ("[network]\nrtt = 1\ndelay = 1", "[network] has both delay and rtt"),
        ("[network.up]\nloss = 1\nburst = '1%/2%'", "[network.up] has both loss and burst"),
        ("[network.clients.client-9]\nloss = 1", "no client 'client-9'"),
        ("[hosts]\nserver = 'tcp://a:1'", "[hosts] has a URL for server, 'tcp://a:1'"),
        ("[network]\nprofile = 'wan'\n[hosts]\nserver = '10.0.0.1:7'", "[hosts] names '10.0.0.1:7'"),
        ("[network]\nprofile = 'wan'\n[hosts]\nclients = ['127.0.0.1', 'far']", "[hosts] names 'far'"),
        (
            "[network]\nemulator = 'message'\ntopology = 'mesh'",
            "message level puts a layer around each link and has no topology = 'mesh'",
        ),
        ("[network]\nemulator = 'message'\n[[network.changes]]\nat = 1\nloss = 1", "has no [[network.changes]]"),
        ("[network]\nemulator = 'message'\n[network.trace]\nfile = 'a.csv'", "has no [network.trace]"),
        ("[stress]", "[stress] names no kind of stress"),
        ("[stress]\ncpu = 9\nparties = ['client-5']", "stress.parties names 'client-5'"),
        ("[stress]\nnetwork = '1mbit'\nparties = ['server']", "network stress with itself"),
        ("[job]\nclients = 1\n[stress]\nnetwork = 9\nnetwork_mode = 'clients'", "needs two of them"),
        ("[data]\npartition = 'iib'", "unknown partition 'iib'"),
        ("[data]\nname = 'minst'", "unknown data set 'minst'"),
    ],
)
def test_an_impossible_combination_says_what_to_change(text: str, words: str) -> None:
    with pytest.raises(ThalwegError) as caught:
        Plan.loads(text)
    assert words in caught.value.cause
    assert caught.value.hint


def test_an_unknown_model_is_a_model_error() -> None:
    with pytest.raises(ModelError, match="Did you mean 'vgg5'"):
        Plan.loads("[model]\nname = 'vgg55'")


def test_what_is_no_toml_names_the_file_and_the_place(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("[job]\nrounds\n")
    with pytest.raises(PlanError, match="line 2") as caught:
        Plan.load(path)
    assert str(path) in caught.value.cause


def test_a_missing_or_binary_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="No such file"):
        Plan.load(tmp_path / "none.toml")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(PlanError, match="UTF-8"):
        Plan.load(binary)


def test_hosts_count_the_clients_and_name_a_list() -> None:
    plan = Plan.loads("[hosts]\nserver = 'a:1'\nclients = ['b', 'c', 'd']")
    assert plan.job.clients == 3
    assert plan.hosts.clients == {"client-1": "b", "client-2": "c", "client-3": "d"}
    named = Plan.loads("[hosts.clients]\nanna = 'b'")
    assert (named.job.clients, named.hosts.clients) == (1, {"anna": "b"})


def test_defaults_are_those_of_the_paper() -> None:
    plan = Plan.of({})
    assert (plan.job.rounds, plan.job.clients, plan.model.name) == (5, 4, "vgg5")
    training = plan.training
    assert (training.batch, training.learning_rate, training.momentum) == (100, 0.01, 0.9)
    assert (training.decay_round, training.decay, training.local_epochs) == (50, 0.1, 1)
    assert (plan.url, plan.scheme, plan.precision, plan.checkpoint_every) == ("tcp://127.0.0.1:0", "tcp", "f32", 1)


def test_a_network_may_have_hosts_on_this_machine_and_layers() -> None:
    text = "[network]\nprofile = 'wan'\n[hosts]\nserver = 'localhost:7'\nclients = ['127.0.0.2', '::1']"
    assert Plan.loads(f"{text}\n[layers]\nthrottle = '3g'").network is not None
    assert Plan.loads("[network]\nemulator = 'none'\n[hosts]\nserver = '10.0.0.1:7'").network is not None


def test_a_plan_whose_files_are_elsewhere_is_still_a_plan() -> None:
    plan = Plan.loads("[network]\nprofile = 'elsewhere.toml'\n[network.trace]\nfile = 'elsewhere.csv'")
    assert Plan.loads(plan.to_toml()) == plan


def test_stress_and_network_are_none_unless_said() -> None:
    assert (Plan.of({}).network, Plan.of({}).stress) == (None, None)
    stress = Plan.loads("[stress]\ncpu = '99%'\ncpu_quota = '20%'\nnetwork = '250mbit'").stress
    assert stress is not None
    assert (stress.cpu, stress.cpu_quota, stress.network, stress.network_mode) == (99, 0.2, 250_000_000, "server")


def test_combinations_are_checked_after_the_merge_with_options(tmp_path: Path) -> None:
    """A key in a file may need another key from the command line, so combinations are checked only after the merge."""
    file = tmp_path / "plan.toml"
    file.write_text('[network]\nrate = "100mbit"\n[network.broker]\nrate = "80mbit"\n')
    with pytest.raises(PlanError, match=r"network\.broker has no effect"):
        assemble(file, None, {})
    plan = assemble(file, None, {"transport.url": "mqtt"})
    assert plan.scheme == "mqtt"
    file.write_text('[network]\nrate = "100"\n')
    with pytest.raises(PlanError, match="100 what"):
        assemble(file, None, {"transport.url": "mqtt"})
