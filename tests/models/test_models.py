"""The models: their sizes are the papers', their initial values follow from a seed, nothing is imported early."""

from __future__ import annotations

import copy
import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from thalweg import errors, models
from thalweg.errors import ModelError
from thalweg.tensors.arena import Arena

# Name: (trainable parameters, elements of the state, tensors of the state).
# VGG-5 and VGG-8: FedComm section IV.A. LeNet: 89,578 in the report plus 256 of its normalisation.
SIZES = {
    "vgg5": (582_346, 582_669, 25),
    "vgg8": (1_337_898, 1_338_800, 46),
    "lenet": (89_834, 89_834, 14),
    "resnet18": (11_181_642, 11_191_262, 122),
    "resnet34": (21_289_802, 21_306_862, 218),
    "resnet152": (58_164_298, 58_315_877, 932),
    "vgg16": (134_301_514, 134_301_514, 32),
}


def test_every_model_is_measured_here() -> None:
    assert {spec.name for spec in models.MODELS.values() if spec.reads == "images"} == set(SIZES)


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_those_of_the_papers(name: str) -> None:
    with torch.device("meta"):  # shapes alone, without memory for the values
        model = models.build(name)
        logits = model(torch.empty(2, 3, 32, 32))
    state = model.state_dict()
    parameters = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    values = sum(tensor.numel() for tensor in state.values())
    spec = models.MODELS[name]
    assert (parameters, values, len(state)) == SIZES[name]
    assert (spec.parameters, spec.values, spec.tensors) == SIZES[name]
    assert logits.shape == (2, 10)


@pytest.mark.parametrize("name", ["vgg5", "vgg8", "lenet", "resnet18"])
def test_a_payload_of_a_network_has_the_size_of_what_is_sent_of_it(name: str) -> None:
    layout = Arena.bind(models.build(name)).core.layout
    assert models.payload_bytes(f"payload:{name}") == models.MODELS[name].layout_bytes == layout.bytes


@pytest.mark.parametrize("name", ["vgg5", "vgg8", "lenet", "resnet18"])
def test_a_real_forward_pass_gives_finite_logits(name: str) -> None:
    logits = models.build(name, classes=7)(torch.rand(2, 3, 32, 32))
    assert logits.shape == (2, 7)
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("vgg5", "C N R M C N R M C N R | D D"),
        ("vgg8", "C N R C N R M C N R C N R M C N R C N R | D D"),
        ("lenet", "C G R M C G R M C G R M | D"),
    ],
)
def test_layers_come_in_the_order_of_the_original(name: str, kinds: str) -> None:
    letters = {
        nn.Conv2d: "C",
        nn.BatchNorm2d: "N",
        nn.GroupNorm: "G",
        nn.ReLU: "R",
        nn.MaxPool2d: "M",
        nn.Linear: "D",
    }
    leaves = [module for module in models.build(name).modules() if not list(module.children())]
    assert [letters[type(leaf)] for leaf in leaves] == kinds.replace("|", "").split()


def test_vgg_has_no_activation_between_its_linear_layers() -> None:
    classifier = models.build("vgg5").get_submodule("classifier")
    one, other = torch.randn(1, 4096), torch.randn(1, 4096)
    zero = classifier(torch.zeros(1, 4096))
    torch.testing.assert_close(
        classifier(one + other) - zero, classifier(one) + classifier(other) - 2 * zero, atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("name", ["vgg5", "vgg8"])
def test_vgg_starts_from_fedcomms_initial_values(name: str) -> None:
    for module in models.build(name, seed=3).modules():
        if isinstance(module, nn.Conv2d):
            assert module.weight.std().item() == pytest.approx(math.sqrt(2 / (9 * module.out_channels)), rel=0.08)
        if isinstance(module, nn.Linear):
            assert module.weight.std().item() == pytest.approx(0.01, rel=0.08)
        if isinstance(module, nn.BatchNorm2d):
            assert torch.equal(module.weight, torch.ones_like(module.weight))
        if isinstance(module, nn.Conv2d | nn.Linear | nn.BatchNorm2d):
            assert module.bias is not None
            assert torch.equal(module.bias, torch.zeros_like(module.bias))


@pytest.mark.parametrize("name", ["vgg5", "lenet"])
def test_the_seed_alone_decides_the_initial_values(name: str) -> None:
    first = models.build(name, seed=5).state_dict()
    torch.rand(17)
    again = models.build(name, seed=5).state_dict()
    other = models.build(name, seed=6).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_building_leaves_the_callers_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    models.build("lenet", seed=1)
    assert torch.equal(before, torch.random.get_rng_state())


def test_unknown_models_are_refused_with_a_guess() -> None:
    with pytest.raises(ModelError, match=r"unknown model 'vgg55'\. Did you mean 'vgg5'\? Known: vgg5, vgg8"):
        models.build("vgg55")
    with pytest.raises(ModelError, match="cannot be trained"):
        models.build("payload:8MiB")
    with pytest.raises(ModelError, match=r"LoRA has a rank of 1 to 9999.*: gpt2\+lora16, gpt2-mini\+lora16"):
        models.build("vgg5+lora4")
    with pytest.raises(ModelError, match="unknown model"):
        models.find("gpt2+lora0")
    with pytest.raises(ModelError, match="1 classes"):
        models.build("vgg5", classes=1)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("payload:8MiB", 8 << 20),
        ("payload:232MiB", 232 << 20),
        ("payload:1GiB", 1 << 30),
        ("payload:4KiB", 4096),
        ("payload:1KB", 1000),
        ("payload:10MB", 10_000_000),
        ("payload:2GB", 2_000_000_000),
        ("payload:4B", 4),
        ("payload:1.5MiB", 3 << 19),
        ("payload:10x64B", 640),
        ("payload:3x1MiB", 3 << 20),
        ("payload:f64:8MiB", 8 << 20),
        ("payload:f64:10x64B", 640),
        ("payload:vgg5", 2_330_856),
        ("payload:f64:vgg5", 8 * 582_669),
        # FedRDMA sends 995.5 MB, and adapters of 1.125 MiB to 288 MiB (its table 3).
        ("payload:f64:gpt2", 995_518_464),
        ("payload:gpt2", 497_759_232),
        ("payload:f64:gpt2+lora4", 1_179_648),
        ("payload:f64:gpt2+lora1024", 288 << 20),
        ("payload:gpt2+lora16", 9 << 18),
        ("vgg5", None),
        ("", None),
    ],
)
def test_payload_sizes(name: str, size: int | None) -> None:
    assert models.payload_bytes(name) == size


def test_values_of_a_payload_are_float64_if_it_says_so() -> None:
    assert [spec and spec.dtype for spec in map(models.payload_of, ("payload:f64:8B", "payload:8B"))] == ["F64", "F32"]
    with pytest.raises(ModelError, match="12 bytes, not a positive multiple of 8"):
        models.payload_of("payload:f64:12B")


@pytest.mark.parametrize("name", ["payload:2x4B", "payload:10x100B", "payload:1x0B"])
def test_several_tensors_must_fit_each_other(name: str) -> None:
    with pytest.raises(ModelError, match="not a positive multiple of 64"):
        models.payload_of(name)


@pytest.mark.parametrize("count", ["0", "00", "100001", "9" * 5000])
def test_a_count_of_tensors_that_cannot_be_is_called_so(count: str) -> None:
    with pytest.raises(ModelError, match=r"no such number of tensors.*Give 1 to 100000 of them"):
        models.payload_of(f"payload:{count}x16KiB")
    several = models.payload_of("payload:100000x64B")
    assert several is not None
    assert len(several.tensors) == 100_000


@pytest.mark.parametrize("name", ["payload:0B", "payload:0MiB", "payload:6B", "payload:1B"])
def test_payloads_must_be_whole_float32s(name: str) -> None:
    with pytest.raises(ModelError, match="not a positive multiple of 4"):
        models.payload_bytes(name)


@pytest.mark.parametrize(
    "name",
    [
        "payload:",
        "payload:\u0668MiB",
        f"payload:{10**99}B",
        "payload:MiB",
        "payload:-4B",
        "payload:8TiB",
        "payload:8MiBs",
        "payload:x8MiB",
        "payload:2x",
        "payload:2xvgg5",
        "payload:\u0662x64B",
    ],
)
def test_payloads_that_are_no_size_are_refused(name: str) -> None:
    with pytest.raises(ModelError, match=r"has no size: .* Give a positive multiple of (4|64) bytes"):
        models.payload_bytes(name)


@settings(deadline=None, derandomize=True)
@given(st.text(max_size=20))
def test_any_text_after_payload_is_a_size_or_a_model_error(text: str) -> None:
    try:
        size = models.payload_bytes(f"payload:{text}")
    except ModelError:
        return
    assert size is not None
    assert size > 0
    assert size % 4 == 0


def test_payload_runs_never_load_torch() -> None:
    script = (
        "import sys, thalweg.models, thalweg.data, thalweg.apps.known_app;"
        "thalweg.models.payload_bytes('payload:8MiB');"
        "thalweg.data.load('digits');"
        "sys.exit(' '.join({'torch', 'sklearn', 'mlxtend', 'torchvision'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_errors_name_cause_and_hint_and_survive_another_process() -> None:
    error = errors.PlanError("rounds is 0.", "Give 1 or more")
    assert str(error) == "rounds is 0. Give 1 or more"
    assert (error.cause, error.hint) == ("rounds is 0.", "Give 1 or more")
    back = copy.copy(error)  # uses the same method as pickling
    assert (type(back), str(back), back.hint) == (errors.PlanError, str(error), error.hint)
    for name in ("PlanError", "DataError", "ModelError", "LinkError", "RoundError", "RecordError"):
        assert issubclass(getattr(errors, name), errors.ThalwegError)
