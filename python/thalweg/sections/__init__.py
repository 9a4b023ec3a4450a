"""The sections of a plan. Every key says what it means, its unit and its default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat

from thalweg.machine.waiting import OUTAGE_SECONDS
from thalweg.sections.marks import Core, Option, Source, Words
from thalweg.sections.tracking import Trackers
from thalweg.ui.units import (
    LARGEST,
    RATE_FORM,
    SIZE_FORM,
    TIME_FORM,
    UnexpectedValueError,
    parse_rate,
    parse_seconds,
    parse_size,
)
from thalweg.wire import Table

BOTH: Final = ("run", "server")
ALL: Final = (*BOTH, "client", "node")
# The commands that run a job on this machine; those of Flower apps that start a server, and all of them.
RUNS: Final = ("run", "flower run")
FLOWER: Final = ("flower run", "flower server")
FLOWER_ALL: Final = (*FLOWER, "flower client")
# The commands that look at aggregation trees.
TREES: Final = ("tree plan", "tree simulate")
CALIBRATE: Final = "tree calibrate"
# The ways to compress with error feedback that send each value; and how all of them are named.
DENSE: Final = ("int8", "int4", "int2")
SCHEME_FORM: Final = (
    "int8, int4, int2, topk:F with the share F of values that are sent, above 0 and at most 1 as topk:0.01, or "
    "powersgd:R with the rank R of matrices from 1 to 64"
)
# The same for the way down, which has no factors.
DOWN_FORM: Final = (
    "int8, int4, int2 or topk:F with the share F of values that are sent, above 0 and at most 1 as topk:0.01"
)
LARGEST_RANK: Final = 64


def _parsed(parse: Callable[[str], float]) -> BeforeValidator:
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


def _numbered(value: Any) -> Any:
    if isinstance(value, list) and all(isinstance(host, str) for host in value):
        return {f"client-{number}": host for number, host in enumerate(value, 1)}
    return value


def _listening(value: Any) -> Any:
    text = str(value) if type(value) is int else value
    port = text.rpartition(":")[2] if isinstance(text, str) else ""
    if not (port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise UnexpectedValueError(value, "a port from 0 to 65535, alone or behind a host as in 0.0.0.0:9100")
    return text


def _scheme(form: str) -> BeforeValidator:
    """Return a check for the name of a scheme. ``form`` says in errors how names look."""

    def checked(value: Any) -> Any:
        if isinstance(value, str):
            name, colon, number = value.partition(":")
            if value in DENSE or (name == "topk" and colon and _is_share(number)):
                return value
            if name == "powersgd" and number.isascii() and number.isdecimal() and 1 <= int(number) <= LARGEST_RANK:
                return value
        raise UnexpectedValueError(value, form)

    return BeforeValidator(checked)


def _is_share(text: str) -> bool:
    # The forms of numbers that the core reads too: digits with at most one point, as 0.01.
    digits = text.replace(".", "", 1)
    return digits.isascii() and digits.isdecimal() and 0 < float(text) <= 1


Scheme: TypeAlias = Annotated[str, _scheme(SCHEME_FORM), Words(SCHEME_FORM)]
# It lets powersgd:R through, since plan/combinations.py refuses that with the reason.
DownScheme: TypeAlias = Annotated[str, _scheme(DOWN_FORM), Words(DOWN_FORM)]
Size: TypeAlias = Annotated[int, _parsed(parse_size), Field(ge=1, le=LARGEST, description=SIZE_FORM)]
Buffer: TypeAlias = Annotated[int, _parsed(parse_size), Field(ge=1, lt=1 << 31, description=SIZE_FORM)]
Rate: TypeAlias = Annotated[int, _parsed(parse_rate), Field(ge=1, le=10**15, description=RATE_FORM)]
Time: TypeAlias = Annotated[
    float,
    _parsed(parse_seconds),
    Field(ge=0, le=1e6, allow_inf_nan=False, description=TIME_FORM),
    Words("seconds, or text as 2s"),
]
Seconds: TypeAlias = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Positive: TypeAlias = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Share: TypeAlias = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Fraction: TypeAlias = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Milliseconds: TypeAlias = Annotated[float, Field(ge=0, le=3.6e6, allow_inf_nan=False)]
Text: TypeAlias = Annotated[str, Field(min_length=1)]
Listening: TypeAlias = Annotated[Text, BeforeValidator(_listening), Words("port, or HOST:PORT")]
Shares: TypeAlias = Annotated[dict[Text, Fraction], Words("table of shares")]
Part: TypeAlias = Annotated[
    Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)],
    Words("whole number, at least 1, or a share as 0.125"),
]
Patterns: TypeAlias = Annotated[
    list[Text],
    Field(min_length=1),
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    Words("list of patterns, or text"),
]
RecordSize: TypeAlias = Annotated[
    Annotated[Size, Field(ge=16, le=4 << 20)] | None,
    BeforeValidator(lambda value: None if value == "auto" else value),
    Words('number, or text with a unit as "4KiB", or "auto"'),
]


class Section(BaseModel):
    """What all sections have in common: unknown keys and wrong types are errors; values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)


class JobSection(Section):
    """How many rounds with how many clients, and when a round ends."""

    rounds: Annotated[int, Option(of=(*BOTH, *TREES)), Source("FedComm section III.C step 3")] = Field(
        5,
        ge=1,
        le=2**32 - 1,
        description="rounds of the job; on a graph, iterations",
    )
    clients: Annotated[
        int,
        Core("expected"),
        Option(of=(*BOTH, *TREES, CALIBRATE)),
        Option(of=FLOWER, help="Nodes that take part; without it as many as the app's own federation has."),
        Source("FedComm section IV.A"),
    ] = Field(4, ge=1, le=100_000, description="clients of the job; on a graph, nodes")
    graph: Annotated[Text | None, Option(metavar="GRAPH")] = Field(
        None,
        description="learn without a server, each node with its neighbours on a graph: ring, K-regular, torus, star, "
        "full, small-world:K,P, random:P, exponential, one-peer or file:PATH; with ,dynamic behind a random one it is "
        "drawn anew each iteration",
    )
    wait: Annotated[
        Literal["all", "none", "first-chunk", "deadline"] | None,
        Option(),
        Source("algorithms 1 to 3 of the udp-dpsgd paper are all, none and first-chunk"),
    ] = Field(
        None,
        description="what a node of a graph waits for before it averages. all: its neighbours' whole models; none: "
        "nothing; first-chunk: something of each, or the deadline; deadline: all, or the deadline, which adapts "
        "without a number; without it all",
    )
    ahead: int | None = Field(
        None,
        ge=0,
        le=16,
        description="iterations that chunks of a faster neighbour are kept, each in a model's memory; without it 1",
    )
    share: Annotated[float | None, Option()] = Field(
        None,
        gt=0,
        le=1,
        description="share of its model that a node of a graph sends in an iteration, each time the next part; without "
        "it all",
    )
    exchange: Literal["auto", "whole", "segments"] | None = Field(
        None,
        description="how nodes of the graph full exchange models. segments: each averages a part of all models and "
        "sends its mean to the others, so that a node of n sends 2 (n - 1) / n models and not n - 1; whole: each sends "
        "its model to all; auto: segments where that saves 256 KiB or more and job.wait is all, the weights are "
        "metropolis or renormalise, and nothing is compressed; without it auto",
    )
    test_every: int | None = Field(
        None,
        ge=0,
        description="iterations between evaluations of each node's model, 0 for none; without it the last iteration",
    )
    evaluate: Annotated[Literal["server", "clients", "both"] | None, Option()] = Field(
        None,
        description="who evaluates after each round: the server the global model, clients each the model that it has "
        "trained, or both; without it clients if tensors that are trained stay with them, else the server",
    )
    choose: Annotated[Part | None, Core()] = Field(
        None,
        description="clients that take part in a round, or their share, chosen anew for each by the seed (UniFL "
        "section 4.1.1); without it all",
    )
    seed: Annotated[int, Core(client=True), Option(of=("run", *FLOWER, *TREES))] = Field(
        0, ge=0, lt=2**63, description="seed of everything random"
    )
    enough: Annotated[int | None, Core(), Option()] = Field(
        None,
        ge=1,
        description="updates that a round needs at least; without it, every client that is still there. The first "
        "round begins once all clients have connected",
    )
    goal: Annotated[int | None, Core(), Option(of=(*BOTH, *TREES)), Source("Bonawitz et al. 2019, section 2.2")] = (
        Field(
            None,
            ge=1,
            description="number of updates that end a round, although more clients train; without it a round waits for "
            "all its clients",
        )
    )
    deadline: Annotated[Seconds | None, Core(), Option()] = Field(
        None,
        description="seconds after which a round ends with those that are in; on a graph, seconds after its own "
        "training that a node waits",
    )
    grace: Annotated[Seconds, Core(), Option(of=(*BOTH, *FLOWER))] = Field(
        10.0, description="seconds that a client whose link broke has to come back in a round"
    )
    outage: Annotated[Seconds, Core(), Option(of=BOTH)] = Field(
        OUTAGE_SECONDS,
        description="seconds that a client whose link broke has to come back while the round has fewer than enough "
        "updates, if longer than grace; with several nodes of a tree only if all clients are needed, or goal is set "
        "without choose",
    )
    liveness: Annotated[float, Core()] = Field(
        10.0, ge=0.1, le=1e6, allow_inf_nan=False, description="least seconds without progress that end a link"
    )


class ModelSection(Section):
    """What is trained, or moved."""

    name: Annotated[Text, Option("model", of=("run", *TREES, CALIBRATE))] = Field(
        "vgg5", description="vgg5, vgg8, lenet, resnet18, gpt2, ..., or payload:SIZE, which is not trained"
    )
    tensors: Annotated[Patterns | None, Option(of=ALL, metavar="PATTERN")] = Field(
        None,
        description="tensors that travel: patterns of names as head.*, with ! in front those that do not, or trainable "
        "for parameters with requires_grad; without it all",
    )


class AppSection(Section):
    """An app of one's own, trained instead of a model known here; `app = "module:object"` sets `object` alone."""

    object: Annotated[
        Text,
        Option(
            "app",
            of=ALL,
            metavar="MODULE:OBJECT",
            help="An app of one's own: my_app:App, or path/to/file.py:App.",
        ),
    ] = Field(
        description="module:object, or path/to/file.py:object: a class, a function that makes an app, or an app; "
        "modules and paths are those of the working directory"
    )
    options: Annotated[dict[Text, bool | int | FiniteFloat | Text] | None, Words("table")] = Field(
        None, description="keyword arguments for the class or function; the run configuration of a Flower app"
    )
    fold: Annotated[
        Literal["auto", "off"] | None,
        Option(
            of=FLOWER, help="auto or off: whether replies become a mean as they come, where a strategy needs no more."
        ),
    ] = Field(
        None,
        description="of a Flower app, auto or off: whether replies become a mean as they come, where a strategy needs "
        "no more; without it auto",
    )
    processes: Annotated[
        int | None,
        Option(of=("flower run",), help="Processes that serve the nodes; else one a node, at most 2 a core."),
    ] = Field(
        None,
        ge=1,
        le=10_000,
        description="of a Flower app: processes that serve the nodes; without it one a node, at most two a core",
    )

    memory: Annotated[
        Size | None, Option(of=FLOWER, metavar="SIZE", help="Bytes of replies held in memory; more lie in files; 1GiB.")
    ] = Field(
        None,
        description="of a Flower app: bytes of replies held in memory, beyond which they lie in files; else 1GiB",
    )
    largest_reply: Annotated[
        Size | None, Option(of=FLOWER, metavar="SIZE", help="Most bytes of a reply; larger ones are errors; 8GiB.")
    ] = Field(
        None, ge=1, description="of a Flower app: most bytes of a reply; a larger one becomes an error; without it 8GiB"
    )

    def own(self) -> Table:
        """Return the settings that a client needs to load a user's own app."""
        return self.model_dump(include={"object", "options"})


class DataSection(Section):
    """What it is trained on, and how that is cut among the clients."""

    name: Annotated[Text, Option("data")] = Field("mnist", description="digits, mnist, fashion-mnist, cifar10, english")
    partition: Annotated[Text, Option()] = Field("iid", description="contiguous, iid, kshard:N or dirichlet:A")
    root: Annotated[Text | None, Option("data-root", of=ALL, metavar="DIR")] = Field(
        None, description="folder with the files, on this machine"
    )
    samples: int | None = Field(
        None, ge=1, description="samples of the training set that are used, drawn by the seed; without it all"
    )
    test_samples: int | None = Field(None, ge=1, description="samples of the test set that are used, likewise")


class TrainingSection(Section):
    """The clients' training. The defaults are FedComm's (section IV.A)."""

    batch: int = Field(100, ge=1, description="samples in a batch")
    learning_rate: float = Field(0.01, gt=0, allow_inf_nan=False, description="learning rate of SGD")
    momentum: float = Field(0.9, ge=0, lt=1, allow_inf_nan=False, description="momentum of SGD")
    decay_round: int = Field(50, ge=0, description="last round with the full learning rate")
    decay: float = Field(0.1, gt=0, allow_inf_nan=False, description="factor of the learning rate after it")
    local_epochs: int = Field(1, ge=1, description="passes over a client's data in a round")
    local_steps: int | None = Field(
        None, ge=1, description="batches that a client trains on in a round, instead of local_epochs"
    )
    threads: Annotated[int | None, Option(of=("client", "node", "flower run", "flower client"))] = Field(
        None, ge=1, description="threads of a client; without it, its share of the cores"
    )
    compute: Annotated[Time | None, Option(metavar="TIME")] = Field(
        None, description="of a payload: time that a client computes in a round before it sends; without it none"
    )
    compute_load: Literal["none", "cpu"] = Field(
        "none", description="none: it waits that long; cpu: it works for that much CPU time, which stress makes longer"
    )


class AlgorithmSection(Section):
    """How clients and server learn together. Keys of one algorithm alone have their place here."""

    name: Annotated[
        Text,
        Option("algorithm", of=BOTH, metavar="NAME", help="fedavg, fedavgm, fedadam, ... (docs/how-to/algorithms.md)."),
    ] = Field(
        "fedavg",
        description="fedavg, fedavgm, fedadam, fedadagrad, fedyogi, fedprox, fednova, qfedavg or scaffold; of a job "
        "with a graph dpsgd, as without it, or choco",
    )
    server_learning_rate: Annotated[Positive | None, Option(of=BOTH)] = Field(
        None,
        description="how far the server goes: what it multiplies its step by; without it 1 for fedavgm, fednova and "
        "scaffold, 0.1 for fedadagrad, 0.01 for fedadam and fedyogi",
    )
    server_momentum: Annotated[Share | None, Option(of=BOTH)] = Field(
        None, description="momentum of the server's steps; without it 0.9 for fedavgm, 0 for fednova"
    )
    nesterov: bool | None = Field(
        None, description="whether that momentum is Nesterov's, as in DiLoCo's outer step; without it no"
    )
    beta1: Share | None = Field(None, description="of fedadam and fedyogi: decay of the mean of steps; without it 0.9")
    beta2: Share | None = Field(
        None, description="of fedadam and fedyogi: decay of the mean of their squares; without it 0.99"
    )
    tau: Positive | None = Field(
        None,
        description="of fedadam, fedadagrad and fedyogi: what is added to the root of that mean; larger is less "
        "adaptive; without it 0.001",
    )
    mu: Positive | None = Field(
        None, description="of fedprox: how strongly a client is held near the received model; without it 0.01"
    )
    q: float | None = Field(
        None,
        ge=0,
        le=100,
        allow_inf_nan=False,
        description="of qfedavg: how much more clients with a large loss count; without it 0.2",
    )
    lipschitz: Positive | None = Field(
        None,
        description="of qfedavg: an upper bound of how fast gradients change; without it 1 over "
        "training.learning_rate, and an app of one's own has to give it",
    )
    gamma: float | None = Field(
        None,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="of choco: how far a model goes towards its neighbours'; without it what the graph's spectral gap "
        "and layers.compress allow. 1 is DCD-PSGD",
    )


class TransportSection(Section):
    """The way updates take."""

    url: Annotated[
        Text,
        Option("transport", metavar="URL", help="tcp, shm, memory, scheme://host:port, or auto, the default."),
        Option("transport", of=("flower run",), metavar="URL", help="tcp, shm, memory, or scheme://host:port."),
        Option("listen", of=("server", "flower server"), metavar="URL", help="Where to listen: tcp://0.0.0.0:7070."),
    ] = Field(
        "tcp://127.0.0.1:0",
        description="where to listen; tcp means tcp://127.0.0.1:0. If a plan names none, or auto, `thalweg run` takes "
        "shm, or tcp if a network is asked for",
    )
    congestion: Annotated[
        Text | None,
        Core("transport.congestion", client=True),
        Option(of=("run", "client", "node", "flower run", "flower client")),
    ] = Field(None, description="congestion control as cubic, reno, bbr; without it the system's")
    client_congestion: Annotated[list[Text], Field(min_length=1)] | None = Field(
        None, description="of the clients of `thalweg run`, dealt out in turn; without it congestion"
    )
    streams: Annotated[int, Core("transport.streams", client=True), Option(of=RUNS)] = Field(
        1, ge=1, le=16, description="parallel connections of one link"
    )
    send_buffer: Annotated[Buffer | None, Core("transport.send_buffer", client=True)] = Field(
        None, description="kernel send buffer in bytes; without it the system tunes it"
    )
    receive_buffer: Annotated[Buffer | None, Core("transport.receive_buffer", client=True)] = Field(
        None, description="kernel receive buffer in bytes; likewise"
    )
    fanout: Annotated[Literal["concurrent", "sequential"], Core(), Option(), Source("FedComm's code is sequential")] = (
        Field(
            "concurrent",
            description="the model to all clients at the same time, or to one after the other",
        )
    )
    gather: Annotated[Literal["concurrent", "in-order"], Core(), Option()] = Field(
        "concurrent", description="updates from all clients at the same time, or from one after the other, by name"
    )
    chunk: Annotated[Annotated[Size, Field(le=4 << 20, multiple_of=64)] | None, Core()] = Field(
        None,
        description="bytes of payload in a chunk, a multiple of 64 up to 4MiB; without it the transport's choice, or "
        "a 64th of an update from 64KiB to 256KiB",
    )
    options: Annotated[dict[Text, bool | int | FiniteFloat | Text] | None, Core("transport.own", client=True)] = Field(
        None, description="table of what only this transport can be told; `thalweg doctor --transports` lists it"
    )

    def congestion_of(self, place: int) -> str | None:
        """Return the congestion control of the client at a place, from 0; None is the system's."""
        dealt = self.client_congestion
        return dealt[place % len(dealt)] if dealt else self.congestion


class AggregationSection(Section):
    """How updates become the next global model."""

    shape: Annotated[Literal["star", "tree"], Option("aggregation", of=("run",)), Source("tree: LIFL")] = Field(
        "star",
        description="who folds updates. star: the server; tree: worker processes of a node, from shared memory, as "
        "[tree] says",
    )
    partial: Annotated[Literal["discard", "keep"], Core(), Option()] = Field(
        "discard", description="what happens to the part that came of an update whose client went away"
    )
    stale: Annotated[int | None, Core(), Option(of=BOTH), Source("FedBuff, Nguyen et al. 2022")] = Field(
        None,
        ge=1,
        le=1000,
        description="how many rounds late an update may be and still count: s rounds late, it counts in the next mean "
        "with its weight divided by the root of 1 + s; without it a late update does not count",
    )
    precision: Annotated[Literal["f32", "f64", "exact"] | None, Core(), Option(of=("run", *FLOWER))] = Field(
        None, description="accumulator; without it f32, or exact if deterministic"
    )
    deterministic: Annotated[bool, Option(of=("run", *FLOWER))] = Field(
        False, description="the same bits whatever the order of arrival"
    )
    weights: Annotated[
        Literal["metropolis", "paper", "renormalise", "symmetric"] | None,
        Option(),
        Source("paper: udp-dpsgd section 3.5.2"),
    ] = Field(
        None,
        description="with what weight a node of a graph takes its neighbours' models. metropolis: 1 / (1 + the larger "
        "degree), its own chunk in place of one that is missing; paper: likewise by the neighbours heard; "
        "renormalise: those that came, scaled to 1; symmetric: chunks that came both ways; without it metropolis",
    )
    staging: Annotated[Size | None, Core()] = Field(
        None,
        description="bytes for whole updates that wait to be folded; without it two updates, 64MiB, or a quarter "
        "of the available memory (not with workers of a tree), whichever is the most",
    )


class RepairSection(Section):
    """What happens to parts of models and updates that were lost on the way."""

    resend: Annotated[
        bool,
        Option(of=FLOWER, help="Ask again for what is lost; or let folded replies count without it (unifl, ltp, udp)."),
    ] = Field(
        True,
        description="true: they are asked for again until whole; false: something stands in, as in FedComm's UDP",
    )
    policy: Literal["renormalise", "keep-local", "zero", "last", "rescale", "fedcomm-legacy"] = Field(
        "renormalise", description="what stands in for what is not asked for again"
    )
    spread: bool = Field(
        False,
        description="updates go in an order, of the job's seed, in which bytes lost together are apart in the model",
    )
    critical: list[Text] = Field(
        [],
        description="tensors of which nothing may be missing, by name as fc.bias or *.bias; they are sent until they "
        "arrive",
    )
    budgets: Shares = Field(
        {},
        description="by such names: share of a tensor's bytes that may be missing; what is lost beyond it is sent "
        "again (UniFL section 5.1)",
    )
    refuse: Shares = Field(
        {}, description="by such names: share of a tensor's bytes whose loss on the way refuses an update"
    )


class SecuritySection(Section):
    """Who gets in. Beyond this machine links are encrypted and peers prove who they are."""

    tls: Annotated[
        Literal["auto", "on", "off"],
        Option(of=("run", *FLOWER)),
        Option(
            of=("client", "flower client"),
            help="auto, on or off: whether links are encrypted; auto: with a known authority, and beyond this machine.",
        ),
    ] = Field("auto", description="whether links are encrypted; auto: with a pki folder, and beyond this machine")
    clients: Literal["any", "certificate"] = Field(
        "any", description="what a client must show: any (its token or its certificate) or certificate"
    )
    pki: Annotated[Text | None, Option(of=("server", "flower server"), metavar="DIR")] = Field(
        None, description="folder that `thalweg pki init` made, for the server"
    )
    token_file: Annotated[Text | None, Option(of=("client", "flower client"), metavar="FILE")] = Field(
        None, description="file that `thalweg pki issue` made, for a client"
    )
    login_file: Annotated[Text | None, Option(of=("run", "client", *FLOWER_ALL), metavar="FILE")] = Field(
        None, description="file with one line user:password, for a broker"
    )


class FaultLayer(Section):
    """Faults that are injected into the messages of both sides. They depend on this seed and the job's."""

    seed: int = Field(0, ge=0, lt=2**63, description="seed besides the job's")
    loss: Fraction = Field(0.0, description="probability that a chunk never arrives")
    duplicate: Fraction = Field(0.0, description="probability that a chunk arrives twice")
    reorder: Fraction = Field(0.0, description="probability that a chunk is held back, by up to 8 chunks")
    corrupt: Fraction = Field(0.0, description="probability that a chunk arrives damaged")
    delay_ms: Milliseconds = Field(0.0, description="milliseconds that a chunk is under way")
    jitter_ms: Milliseconds = Field(0.0, description="milliseconds by which the delay varies in both directions")
    cut_after: Size | None = Field(None, description="bytes after which the link breaks")


class SealLayer(Section):
    """Updates sealed from end to end, in records that are opened one by one. Links must be encrypted."""

    cipher: Literal["aes-256-gcm", "chacha20-poly1305", "aes-cbc"] = Field(
        "aes-256-gcm", description="aes-cbc, for comparison, is not authenticated (UniFL section 3.3)"
    )
    record: RecordSize = Field(
        None, description="bytes of an update in a record, 16 to 4MiB; without it, or auto, what costs least at `loss`"
    )
    loss: Fraction = Field(0.01, description="loss of segments that is expected")


class CompressLayer(Section):
    """Float32 values of updates in fewer bytes on the way, in both directions. All parties must say the same."""

    format: Literal["f16", "int8"] = Field(
        "f16",
        description="f16: half the bytes, an error of at most 2^-11 of a value; int8: a quarter, an error of at most a "
        "127th of the largest of 256 neighbours",
    )


class LayersSection(Section):
    """Wrappers around the transport. The record lists them."""

    throttle: Annotated[
        Rate | None,
        Core("layers.throttle", client=True, write=lambda rate: f"{rate}bit"),
        Option(of=RUNS, metavar="RATE"),
    ] = Field(None, description="rate of each link and direction in bits a second (or 3g 4g wifi)")
    fault: Annotated[FaultLayer | None, Core("layers.fault", client=True)] = Field(
        None, description="table of loss, duplicate, reorder, corrupt, delay_ms, jitter_ms, cut_after, seed"
    )
    seal: Annotated[SealLayer | None, Core("layers.seal", client=True)] = Field(
        None, description="table of cipher, record, loss"
    )
    compress: Annotated[CompressLayer | None, Core("layers.compress", client=True)] = Field(
        None, description="table of format"
    )

    @property
    def format(self) -> str | None:
        """What float32 values become on the way; None if they stay."""
        return None if self.compress is None else self.compress.format

    def emulation(self) -> Table:
        """Return the settings that make links worse, for the record."""
        return self.model_dump(exclude_none=True, exclude={"seal", "compress"})


class CompressionSection(Section):
    """Updates in few bits, by senders that keep what they left out and add it to their next update."""

    scheme: Annotated[
        Scheme | None,
        Core("layers.compress.scheme", client=True),
        Option("compression", of=BOTH, metavar="SCHEME"),
    ] = Field(
        None,
        description="int8, int4 and int2: bits of a value, scaled by blocks of 256; topk:F: the share F of values that "
        "changed most, as topk:0.01; powersgd:R: matrices of rank R. Clients send by how much their float32 values "
        "differ from the received model",
    )
    down: Annotated[
        DownScheme | None,
        Core("layers.compress.down", client=True),
        Option("compression-down", of=BOTH, metavar="SCHEME"),
    ] = Field(
        None,
        description="int8, int4, int2 or topk:F for models, beside compression.scheme: the server sends by how much "
        "its model differs from the one that clients have, and a client that is not in step gets the whole model",
    )


class HostsSection(Section):
    """Who is where (FedComm section III.C step 6)."""

    server: Text | None = Field(None, description="host:port where the server listens and clients connect")
    clients: Annotated[dict[Text, Text], BeforeValidator(_numbered)] | None = Field(
        None, description="table name = host, or a list of hosts, whose names are then client-1, client-2 and so on"
    )
    nodes: Annotated[dict[Text, Text], Words("table")] | None = Field(
        None, description="of a job with a graph: table name = host:port, where each node listens, in the graph's order"
    )


class RecordSection(Section):
    """What a run leaves behind."""

    folder: Annotated[Text, Option("record", of=(*BOTH, "node", *FLOWER), metavar="DIR")] = Field(
        "runs", description="folder that gets a new folder for each run"
    )
    checkpoint_every: int | None = Field(
        None, ge=0, description="rounds between checkpoints, 0 for none; without it 1; none for a payload or on a graph"
    )
    checkpoint_to: Annotated[Text | None, Option(of=BOTH, metavar="URL")] = Field(
        None,
        description="folder, or URL of an object store as s3://BUCKET/FOLDER, that keeps checkpoints instead of the "
        "record; they are written in the background",
    )
    metrics: Annotated[Listening | None, Option(of=(*BOTH, "node"), metavar="PORT")] = Field(
        None, description="port on 127.0.0.1, or HOST:PORT, at which Prometheus reads numbers of the job while it runs"
    )
    track: Annotated[Trackers, Option(of=(*BOTH, *FLOWER), metavar="TRACKER")] = Field(
        [],
        description="trackers that get each round's figures: tensorboard:DIR, wandb, mlflow, trackio; otlp gets traces",
    )
