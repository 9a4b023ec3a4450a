"""Refuses plans whose settings contradict each other. Each error says what to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from thalweg import algorithms, apps, data, models
from thalweg.apps import computing
from thalweg.errors import PlanError
from thalweg.plan import baselines, effects, on_graphs, on_trees
from thalweg.sections.network import NODES
from thalweg.transports import links, registry
from thalweg.transports.registry import WordNeed

if TYPE_CHECKING:
    from thalweg.plan import Plan
    from thalweg.sections.network import NetworkSection
    from thalweg.transports.registry import Capabilities, ChunkNeed, Kind, OptionValue, Setting, Transport


# Keys of [training] that also have an effect on the user's own app.
OF_APPS: Final = frozenset({"threads"})
# Policies whose stand-ins are parts of a model, not of a difference between models.
STANDS_IN_FOR_MODELS: Final = ("zero", "fedcomm-legacy")
# Policies that make up for what is missing of an update, which with compression the next update does too.
REPLACES_LOST_VALUES: Final = ("last", "rescale")
# Bytes that a chunk must have room for if it is to carry factors of matrices.
LEAST_FOR_FACTORS: Final = 64 << 10
# Keys of [app] that apply to Flower apps only.
OF_FLOWER: Final = ("fold", "processes", "memory", "largest_reply")


def check(plan: Plan) -> None:
    """Refuse a plan that is impossible on any machine. Raises PlanError, ModelError or DataError."""
    algorithms.find(plan.algorithm.name)
    _app(plan)
    if effects.job_of(plan) != "flower":
        effects.check(plan)
    _names(plan)
    _algorithm(plan)
    _training(plan)
    _payload(plan)
    _checkpoints(plan)
    _round(plan)
    _aggregation(plan)
    _repair(plan)
    _seal(plan)
    _compression(plan)
    _hosts(plan)
    on_graphs.check(plan)
    _network(plan)
    _stress(plan)


def check_transport(plan: Plan, entries: Sequence[Transport]) -> None:
    """Refuse a transport that is unknown, not available, or unable to do what the plan needs.

    ``entries`` are the transports of this build. Raises PlanError.
    """
    # Not checked when a plan is read: the plan in a Flower app's record has job.rounds, which no user may set there.
    effects.check(plan)
    on_trees.check(plan)
    by_name = {entry.name: entry for entry in entries}
    name = plan.scheme
    if name not in by_name:
        near = get_close_matches(name, by_name, n=1)
        guess = f"Did you mean {near[0]!r}? " if near else registry.meant(name)
        raise PlanError(f"unknown transport {name!r}", f"{guess}Known: {', '.join(by_name)}")
    entry = by_name[name]
    if not entry.available:
        raise PlanError(f"the transport {name!r} is not available: {entry.reason}", "Choose another transport")
    can = entry.capabilities
    on_graphs.check_transport(plan, can)
    required = {
        "a congestion control": (plan.transport.congestion is not None, can.congestion, "transport.congestion"),
        "the clients' congestion control": (
            plan.transport.client_congestion is not None,
            can.congestion,
            "transport.client_congestion",
        ),
        "several streams": (plan.transport.streams > 1, can.remote, "transport.streams"),
        "TLS": (plan.security.tls == "on", can.encrypted, "security.tls"),
    }
    for what, (wanted, able, key) in required.items():
        if wanted and not able:
            raise PlanError(
                f"the transport {name!r} has no choice of {what}", f"Remove {key}, or take another transport"
            )
    _options(plan, name, entry.settings, can)
    baselines.check(plan)
    compressing = "compression.scheme" if plan.compression.scheme is not None else "[layers.compress]"
    if (plan.layers.compress is not None or plan.compression.scheme is not None) and not can.symmetric:
        raise PlanError(
            f"{name} masks losses, and a compressed chunk cannot be decoded behind a hole",
            f"Remove {compressing}, or take another transport, such as ltp",
        )
    if (plan.compression.scheme or "").startswith("powersgd") and can.max_chunk < LEAST_FOR_FACTORS:
        raise PlanError(
            f"a chunk of {name} is one datagram, which has no room for the factors of powersgd",
            "Take another compression.scheme, such as int8, or another transport, such as tcp",
        )
    if plan.network is not None and plan.network.emulator != "none" and not can.remote:
        raise PlanError(
            f"the transport {name!r} stays within {on_graphs.reach(can)} and crosses no network",
            "Remove [network], or take another transport, such as tcp",
        )


def _options(plan: Plan, name: str, settings: Sequence[Setting], can: Capabilities) -> None:
    kinds = {setting.name: setting.kind for setting in settings}
    options = plan.transport.options or {}
    for key, value in options.items():
        if key not in kinds:
            raise PlanError(
                f"the transport {name!r} has no option {key}, which transport.options names",
                f"Known: {', '.join(kinds)}" if kinds else "Remove it: this transport has no options of its own",
            )
        if not _fits(value, kinds[key]):
            raise PlanError(f"transport.options.{key} is {value!r}", f"It is {setting_words(kinds[key])}")
    all_of = {key: kind.default for key, kind in kinds.items()} | options
    chunk = plan.transport.chunk or can.preferred_chunk
    for setting in settings:
        if all_of[setting.name] != setting.kind.default:
            for need in setting.needs:
                _need(setting.name, need, all_of, chunk)


def _need(key: str, need: WordNeed | ChunkNeed, options: Mapping[str, OptionValue], chunk: int) -> None:
    """Refuse an option that has no effect because of another option, or because chunks are smaller. Raises PlanError.

    ``chunk`` is the length of a chunk in bytes, or 0 if the server chooses it.
    """
    if isinstance(need, WordNeed):
        other, word = need.name, options[need.name]
        if word in need.among:
            return
        raise PlanError(
            f"transport.options.{key} has no effect with {other} = {word!r}",
            f"Remove it, or set transport.options.{other} to {' or '.join(map(repr, need.among))}",
        )
    value = options[key]
    if chunk and isinstance(value, int) and value > chunk + need.beside:
        beside = f" and {need.beside} bytes beside it" if need.beside else ""
        raise PlanError(
            f"transport.options.{key} is {value}. More than a chunk of {chunk} bytes{beside} has no further effect",
            f"Lower it to {chunk + need.beside}, or raise transport.chunk",
        )


def _fits(value: object, kind: Kind) -> bool:
    if kind.type == "flag":
        return isinstance(value, bool)
    if kind.type == "number":
        if not isinstance(value, int) or isinstance(value, bool) or kind.least is None or kind.most is None:
            return False
        return kind.least <= value <= kind.most
    if kind.type == "share":
        return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1
    return isinstance(value, str) and (kind.type != "choice" or value in kind.choices)


def setting_words(kind: Kind) -> str:
    """Return in words which values a transport's setting may have."""
    words = {
        "flag": "true or false",
        "number": f"a whole number from {kind.least} to {kind.most}",
        "share": "a share from 0 to 1",
        "choice": f"one of {', '.join(kind.choices)}",
        "text": "text",
    }
    return words[kind.type]


def _app(plan: Plan) -> None:
    if plan.app is None:
        return
    keys = ["model.name"] if "name" in plan.model.model_fields_set else []
    keys += ["data"] if plan.data.model_fields_set else []
    keys += [f"training.{key}" for key in sorted(plan.training.model_fields_set - OF_APPS)]
    if keys:
        raise PlanError(
            f"the plan has {keys[0]} beside an app, {plan.app.object}, which has its own model, data and training",
            f"Remove {keys[0]}, or app; app.options has settings for the app",
        )
    keys = [key for key in OF_FLOWER if getattr(plan.app, key) is not None]
    if keys and not plan.app.object.startswith(apps.FLOWER):
        raise PlanError(
            f"app.{keys[0]} is of Flower apps, and {plan.app.object} is none",
            f"Remove it, or name a Flower app's folder: app = '{apps.FLOWER}APP_DIR'",
        )
    # The app is loaded only when it runs, because its file may be on another machine.
    place, colon, attribute = plan.app.object.rpartition(":")
    if not (place and colon and attribute):
        raise PlanError(f"app is {plan.app.object!r}, which does not name an app", apps.FORM)


def _names(plan: Plan) -> None:
    if plan.app is not None:
        return
    if models.payload_bytes(plan.model.name) is None:
        model = models.find(plan.model.name)
        data.check_reader(data.find(plan.data.name), model.name, model.reads)
        data.parse_partition(plan.data.partition)


def _algorithm(plan: Plan) -> None:
    chosen = algorithms.find(plan.algorithm.name)
    if not chosen.trains or effects.job_of(plan) == "flower":
        return
    if plan.is_payload:
        raise PlanError(
            f"{plan.model.name} is not trained, and the algorithm {chosen.name} changes how a model is trained",
            "Remove algorithm.name, or name a network, such as vgg5",
        )
    if plan.app is not None and chosen.own_apps:
        raise PlanError(f"the algorithm {chosen.name} is for known models: {chosen.own_apps}", "Remove algorithm.name")
    if chosen.beside and plan.training.momentum:
        raise PlanError(
            f"the algorithm {chosen.name} computes its corrections from plain SGD, and training.momentum is "
            f"{plan.training.momentum:g}",
            "Set training.momentum = 0",
        )
    if plan.algorithm_settings.get("nesterov") and not plan.algorithm_settings.get("server_momentum"):
        raise PlanError(
            "algorithm.nesterov chooses the kind of momentum, and algorithm.server_momentum is 0",
            "Give algorithm.server_momentum, for example 0.9, or remove algorithm.nesterov",
        )
    if plan.algorithm_settings.get("lipschitz", 1.0) is None:
        raise PlanError(
            f"the algorithm {chosen.name} needs a Lipschitz constant, and does not know the learning rate of an app",
            "Give algorithm.lipschitz: 1 over the clients' learning rate is the usual choice",
        )


def _training(plan: Plan) -> None:
    if plan.training.local_steps is not None and plan.training.local_epochs != 1:
        raise PlanError(
            "training.local_steps and training.local_epochs both say how long a client trains in a round",
            "Remove one of them",
        )


def _compression(plan: Plan) -> None:
    scheme = plan.compression.scheme
    if scheme is None:
        if plan.compression.down is not None:
            raise PlanError(
                "compression.down needs compression.scheme: without it clients send whole models, which lack what the "
                "way down has left out",
                "Give compression.scheme, as int8, or remove compression.down",
            )
        return
    if (plan.compression.down or "").startswith("powersgd"):
        raise PlanError(
            "powersgd makes factors of a client's update; the server's model changes by the mean of many, whose rank "
            "is higher",
            "Take int8, int4, int2 or topk:F for compression.down",
        )
    if plan.compression.down is not None and not plan.repair.resend:
        raise PlanError(
            "with repair.resend = false a client may lack a part of a difference, and would be out of step ever after",
            "Remove compression.down, or repair.resend",
        )
    if plan.layers.compress is not None:
        raise PlanError(
            "compression.scheme and layers.compress both compress updates",
            "Remove [layers.compress], which also rounds models, and drops what it leaves out",
        )
    if plan.aggregation.stale:
        raise PlanError(
            f"with {scheme} a late update is sent again in the next one, so it must not count in a later round",
            "Remove aggregation.stale or compression.scheme",
        )
    if plan.repair.spread:
        raise PlanError(
            f"repair.spread scatters neighbouring values, and {scheme} scales neighbouring values together",
            "Remove repair.spread or compression.scheme",
        )
    if not plan.repair.resend and plan.repair.policy in STANDS_IN_FOR_MODELS:
        raise PlanError(
            f"repair.policy = {plan.repair.policy!r} replaces lost values by those of a model, and with {scheme} "
            "updates are differences",
            "Take another repair.policy, such as renormalise, or remove compression.scheme",
        )
    if not plan.repair.resend and plan.repair.policy in REPLACES_LOST_VALUES:
        raise PlanError(
            f"repair.policy = {plan.repair.policy!r} replaces lost values, and with {scheme} the next update has them",
            "Take another repair.policy, such as renormalise, or remove compression.scheme",
        )


def _payload(plan: Plan) -> None:
    keys = ["data"] if plan.data.model_fields_set else []
    keys += ["training"] if plan.training.model_fields_set - computing.KEYS else []
    if plan.is_payload and plan.model.tensors is not None:
        raise PlanError(f"all of {plan.model.name} is always sent", "Remove model.tensors, or take a smaller payload")
    if not plan.is_payload and plan.training.compute is not None:
        raise PlanError(
            f"{plan.model.name} is really trained, so training.compute cannot set how long that takes",
            f"Remove training.compute, or take payload:{plan.model.name}, an update of the same size",
        )
    if plan.is_payload and keys:
        raise PlanError(
            f"{plan.model.name} is not trained, but the plan has [{keys[0]}]",
            f"Remove [{keys[0]}], or name a network, such as vgg5",
        )
    for key in ("checkpoint_every", "checkpoint_to"):
        if plan.is_payload and getattr(plan.record, key):
            raise PlanError("a payload is not trained, so it needs no checkpoints", f"Remove record.{key}")


def _checkpoints(plan: Plan) -> None:
    url = plan.record.checkpoint_to
    if url is None:
        return
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise PlanError(
            "record.checkpoint_to contains a key or a password, which the record would keep",
            "Give it as the storage's own programs take it: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )


def _round(plan: Plan) -> None:
    job = plan.job
    if plan.participants > job.clients:
        raise PlanError(
            f"a round cannot choose {plan.participants} of {job.clients} clients", "Make job.choose at most job.clients"
        )
    if job.enough is not None and job.enough > plan.participants:
        raise PlanError(
            f"a round of {plan.participants} clients cannot need {job.enough} updates",
            f"Make job.enough at most job.{'clients' if job.choose is None else 'choose'}",
        )
    if job.goal is not None and not (job.enough or 1) <= job.goal <= plan.participants:
        raise PlanError(
            f"job.goal is {job.goal}, and must be from {job.enough or 1} to {plan.participants}",
            f"Make job.goal at least job.enough and at most job.{'clients' if job.choose is None else 'choose'}",
        )


def _aggregation(plan: Plan) -> None:
    chosen = plan.aggregation
    if chosen.deterministic and chosen.precision not in (None, "exact"):
        raise PlanError(
            f"deterministic needs precision exact, not {chosen.precision}",
            "Remove aggregation.precision, or aggregation.deterministic",
        )
    if chosen.partial == "keep" and plan.job.goal is not None and plan.job.goal < plan.participants:
        raise PlanError(
            "job.goal says which whole updates count, and with partial = keep each part counts as soon as it arrives",
            "Remove job.goal, or take aggregation.partial = 'discard'",
        )
    if chosen.partial == "keep" and chosen.stale:
        raise PlanError(
            "with partial = keep a part of a late update already counts in the round that is over",
            "Remove aggregation.stale, or take aggregation.partial = 'discard'",
        )
    if chosen.stale and plan.algorithm.name not in ("fedavg", "fedprox"):
        raise PlanError(
            f"the algorithm {plan.algorithm.name!r} takes a step from the model with which the round began, and a late "
            "update was trained from an older one",
            "Remove aggregation.stale, or take algorithm.name = 'fedavg' or 'fedprox'",
        )
    if chosen.partial == "keep" and chosen.staging is not None:
        raise PlanError(
            "partial = keep folds on arrival and stages nothing", "Remove aggregation.staging, or take discard"
        )


def _repair(plan: Plan) -> None:
    chosen = plan.repair
    if chosen.spread and chosen.resend:
        raise PlanError(
            "repair.spread scatters lost values, but with repair.resend lost values are sent again",
            "Set repair.resend = false, or remove repair.spread",
        )
    if chosen.spread and chosen.policy == "fedcomm-legacy":
        raise PlanError(
            "repair.policy = fedcomm-legacy fills holes with the bytes that follow, so the order must not change",
            "Remove repair.spread, or take another repair.policy",
        )
    if chosen.refuse and plan.aggregation.partial == "keep":
        raise PlanError(
            "repair.refuse refuses whole updates, and partial = keep folds each chunk on arrival",
            "Take aggregation.partial = 'discard', which stages updates, or remove repair.refuse",
        )
    if chosen.policy == "renormalise":
        return
    if chosen.resend:
        raise PlanError(
            f"repair.policy is {chosen.policy}, but with repair.resend lost values are sent again and need no stand-in",
            "Set repair.resend = false, or remove repair.policy",
        )
    if plan.aggregation.partial == "keep":
        raise PlanError(
            f"repair.policy = {chosen.policy} completes whole updates, and partial = keep folds each chunk on arrival",
            "Take aggregation.partial = 'discard', which stages updates, or repair.policy = 'renormalise'",
        )


def _seal(plan: Plan) -> None:
    if plan.layers.seal is not None and not links.uses_tls(plan.security, plan.url):
        raise PlanError(
            "layers.seal derives its keys from those of an encrypted link, and the links are not encrypted",
            "Set security.tls = 'on', or give a pki folder; or remove [layers.seal]",
        )


def _hosts(plan: Plan) -> None:
    named = plan.hosts.clients
    if named is not None and len(named) != plan.job.clients:
        raise PlanError(
            f"[hosts] names {len(named)} clients where job.clients is {plan.job.clients}",
            "Make them agree, or leave job.clients out",
        )
    if "://" in (plan.hosts.server or ""):
        raise PlanError(
            f"[hosts] has a URL for server, {plan.hosts.server!r}, where host:port belongs",
            "Remove what is in front of the host: transport.url has the scheme",
        )


def _clock(plan: Plan) -> None:
    if plan.network is None or plan.network.clock == "real":
        return
    wrong = {
        "[stress], which needs the real speed of this machine": plan.stress is not None,
        "a broker, which is a program of this machine": registry.can(plan.scheme).broker,
        f"the emulator {plan.network.emulator}": plan.network.emulator not in ("auto", "packet"),
    }
    for what, is_so in wrong.items():
        if is_so:
            raise PlanError(f"clock = 'virtual' does not go with {what}", "Take network.clock = 'real'")
    if plan.scheme == "rdma" and plan.network.limiter == "device":
        raise PlanError(
            "clock = 'virtual' does not go with rdma and limiter = 'device': while the limiter's queue is full, the "
            "guest's driver waits in a loop, and virtual time stands still while a program computes",
            "Take network.limiter = 'path'",
        )


def _network(plan: Plan) -> None:
    network = plan.network
    _clock(plan)
    if network is None or network.emulator == "none":
        return
    if network.emulator == "netem":
        raise PlanError("the emulator netem is not there yet", "Take network.emulator = 'auto', 'packet' or 'message'")
    everybody = network.tcp.congestion
    required = {plan.transport.congestion, *(plan.transport.client_congestion or ())} - {None, everybody}
    if everybody is not None and required:
        raise PlanError(
            f"network.tcp.congestion makes all connections {everybody}, and [transport] asks for {min(required)}",
            "Remove one of them, or make them agree",
        )
    hosts = (plan.hosts.server, *(plan.hosts.clients or {}).values(), *(plan.hosts.nodes or {}).values())
    far = next((host for host in hosts if host is not None and not _is_loopback(host)), None)
    if far is not None:
        raise PlanError(
            f"[network] emulates links on this machine, but [hosts] names {far!r}", "Remove [network], or [hosts]"
        )
    if network.emulator == "message":
        from thalweg.network import message

        message.check(network)
    # Files that a plan names may be on another machine, so their content is checked when the plan runs.
    if not _names_files(network):
        from thalweg.plan.emulated import network_of

        network_of(plan)


def _names_files(network: NetworkSection) -> bool:
    from thalweg.network import profiles

    links = (network, network.bottleneck, network.broker, *(network.clients or {}).values(), *(network.links or ()))
    names = [link.profile for link in (*links, *(network.changes or ())) if link is not None]
    named = network.trace is not None or network.topology.startswith("file:")
    return named or any(name is not None and not profiles.is_shipped(name) for name in names)


def _stress(plan: Plan) -> None:
    stress = plan.stress
    if stress is None:
        return
    clients = plan.members
    parties = [*clients] if plan.job.graph is not None else ["server", *clients, *on_trees.nodes_of(plan)]
    parties += on_trees.middle_nodes_of(plan)
    more = ""
    if on_trees.has_nodes(plan):
        parties.append(NODES)
        more = f"; nodes of the tree, as {on_trees.nodes_of(plan)[0]}; {NODES}"
    has_schema = plan.tree is not None and plan.tree.tag is not None
    for party in stress.parties or ():
        # Which middle nodes a schema has is known when the run reads it.
        if party not in parties and not (has_schema and party.startswith(on_trees.MIDDLE)):
            near = get_close_matches(party, parties, n=1)
            guess = f"Did you mean {near[0]!r}? " if near else ""
            first = "" if plan.job.graph is not None else "server, "
            raise PlanError(
                f"stress.parties names {party!r}", f"{guess}Known: {first}{clients[0]} to {clients[-1]}{more}"
            )
    if stress.cpu is None and stress.cpu_quota is None and stress.network is None:
        raise PlanError("[stress] names no kind of stress", "Give cpu, cpu_quota or network, or remove [stress]")
    under = stress.parties or clients
    if stress.network is None:
        return
    if stress.network_mode == "server" and set(under) == {"server"}:
        raise PlanError("the server cannot be under network stress with itself", "Name clients in stress.parties")
    if stress.network_mode == "clients" and len([party for party in under if party != "server"]) < 2:
        raise PlanError("network stress between clients needs two of them", "Name two, or take network_mode = 'server'")


def _is_loopback(host: str) -> bool:
    name = host.rpartition(":")[0] if host.count(":") == 1 or host.startswith("[") else host
    try:
        return name == "localhost" or ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
