"""The ways in which training may replace a model's tensors: the arena gets the result, or an error gives the reason."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

from thalweg import _core
from thalweg.errors import ModelError
from thalweg.tensors.binding import Binding, attach, bind
from thalweg.tensors.travelling import slots
from thalweg.tensors.watching import Watch


def network() -> Any:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


class Tied(nn.Module):
    """A model whose first and last layer share their weight, as in language models."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.body = nn.Linear(3, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


def by_data(model: Any) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data + 1


def by_state_dict(model: Any) -> None:
    state = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


def by_new_parameters(model: Any) -> None:
    for module in model:
        for name, parameter in list(module.named_parameters()):
            setattr(module, name, nn.Parameter(parameter.detach() + 1, requires_grad=False))


def by_new_submodule(model: Any) -> None:
    model[0] = nn.Linear(3, 3)


def by_a_round_trip(model: Any) -> None:
    model.double()
    by_data(model)
    model.float()


def by_memory_format(model: Any) -> None:
    with torch.no_grad():
        model[0].weight.data = (model[0].weight + 1).t().contiguous().t()


def by_swapping(model: Any) -> None:
    first, last = model[0], model[2]
    first.bias.data, model[1].bias.data = model[1].bias.data, first.bias.data + 1
    model[0].weight.data = model[0].weight.data.t()  # a square matrix, transposed in its own memory
    last.weight.data += 1


def by_exchange(model: Any) -> None:
    model[0].bias.data, model[1].weight.data = model[1].weight.data, model[0].bias.data


def by_inference(model: Any) -> None:
    with torch.inference_mode():
        fresh = model[0].weight + 1
    model[0].weight = nn.Parameter(fresh, requires_grad=False)


def by_shared_memory(model: Any) -> None:
    model.share_memory()
    with torch.no_grad():
        model[0].weight += 1


def by_buffers(model: Any) -> None:
    model[1].running_mean = torch.full((3,), 7.0)


def by_compiling(model: Any) -> None:
    model[0] = torch.compile(model[0], backend="eager")
    by_data(model)


WAYS: list[Callable[[Any], None]] = [
    by_data,
    by_state_dict,
    by_new_parameters,
    by_new_submodule,
    by_a_round_trip,
    by_memory_format,
    by_swapping,
    by_exchange,
    by_inference,
    by_shared_memory,
    by_buffers,
    by_compiling,
]


def checked(model: Any) -> Binding:
    """Bind a model and check it once more, so that the next check compares it with what this one has found."""
    bound = bind(model)
    assert bound.collect("train()") == []
    return bound


def agrees(bound: Binding) -> bool:
    """Return whether every tensor of the model is a view of the arena's memory."""
    by_name = slots(bound.model)
    return all(
        by_name[name].tensor.data_ptr() == bound.arena.core.address + offset and by_name[name].tensor.is_contiguous()
        for name, _, _, offset in bound.arena.layout.tensors
    )


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_what_training_moves_is_brought_back(way: Callable[[Any], None]) -> None:
    bound = checked(network())
    way(bound.model)
    trained = {name: slot.tensor.detach().clone() for name, slot in slots(bound.model).items()}
    assert bound.collect("train()"), "it moved something"
    assert agrees(bound)
    for name, values in trained.items():
        np.testing.assert_array_equal(bound.arena[name], values.numpy(), err_msg=name)
        assert torch.equal(slots(bound.model)[name].tensor, values), name
    assert bound.collect("train()") == [], "the next round costs no copy"


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_new_global_model_is_seen_whatever_the_last_round_left(way: Callable[[Any], None]) -> None:
    bound = checked(network())
    way(bound.model)
    np.asarray(bound.arena.core)[:] = 0
    bound.restore("the last round")
    assert agrees(bound)
    assert all(torch.count_nonzero(slot.tensor) == 0 for slot in slots(bound.model).values())


def test_training_in_place_moves_nothing() -> None:
    bound = bind(network())
    optimizer = torch.optim.Adam(bound.model.parameters(), lr=0.1)
    compiled: Any = torch.compile(bound.model, backend="eager")
    compiled(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()
    bound.model.load_state_dict({name: tensor * 2 for name, tensor in bound.model.state_dict().items()})
    bound.model.requires_grad_(False).eval().float().cpu()
    assert bound.collect("train()") == []
    assert agrees(bound)


def test_an_optimiser_keeps_its_parameters() -> None:
    bound = bind(network())
    optimizer = torch.optim.SGD(bound.model.parameters(), lr=1.0)
    by_data(bound.model)
    bound.collect("train()")
    before = bound.arena["0.weight"].copy()
    bound.model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    assert (bound.arena["2.bias"] != 0).any()
    assert not np.array_equal(bound.arena["2.bias"], before[0, :2])
    assert agrees(bound)


def half(model: Any) -> None:
    model.half()


def wider(model: Any) -> None:
    model[2] = nn.Linear(3, 4)


def gone(model: Any) -> None:
    model[2].bias = None


def shorter(model: Any) -> None:
    del model[2]


def more(model: Any) -> None:
    model.append(nn.Linear(2, 2))


def one(model: Any) -> None:
    model[1].bias = model[0].bias


def meta(model: Any) -> None:
    model.to("meta")


def sparse(model: Any) -> None:
    model[0].weight = nn.Parameter(model[0].weight.detach().to_sparse())


def pruned(model: Any) -> None:
    nn.utils.parametrize.register_parametrization(model[0], "weight", nn.Identity())


@pytest.mark.parametrize(
    ("way", "words"),
    [
        (half, r"'0\.weight' is float16\[3, 3\]; it was float32\[3, 3\]"),
        (wider, r"'2\.weight' is float32\[4, 3\]"),
        (gone, r"no tensor '2\.bias'"),
        (shorter, r"no tensor '2\.weight'"),
        (more, r"new tensor '3\.(weight|bias)'"),
        (one, r"'0\.bias' and '1\.bias' are one"),
        (meta, r"'0\.weight' is on the device meta"),
        (sparse, r"'0\.weight' is .* in the form sparse_coo"),
        (pruned, r"no tensor '0\.weight'"),
    ],
)
def test_what_cannot_be_brought_back_is_an_error_that_changes_nothing(way: Callable[[Any], None], words: str) -> None:
    bound = checked(network())
    by_data(bound.model)
    way(bound.model)
    before = bytes(np.asarray(bound.arena.core))
    with pytest.raises(ModelError, match=rf"after train\(\) .*{words}") as caught:
        bound.collect("train()")
    assert caught.value.hint
    assert bytes(np.asarray(bound.arena.core)) == before
    with pytest.raises(ModelError, match=words):
        bound.restore("train()")


@pytest.mark.parametrize("way", [gone, shorter, more, one, pruned], ids=lambda way: way.__name__)
def test_a_change_of_the_modules_alone_is_seen(way: Callable[[Any], None]) -> None:
    bound = checked(network())
    way(bound.model)
    with pytest.raises(ModelError, match=r"after train\(\)"):
        bound.collect("train()")


def test_a_tensor_in_place_of_none_is_seen() -> None:
    bound = checked(nn.Linear(2, 2, bias=False))
    bound.model.bias = nn.Parameter(torch.zeros(2))
    with pytest.raises(ModelError, match="new tensor 'bias'"):
        bound.collect("train()")


def test_a_tensor_that_is_replaced_is_freed_at_once() -> None:
    bound = checked(network())
    module, weight = weakref.ref(bound.model[0]), weakref.ref(bound.model[2].weight)
    by_new_submodule(bound.model)
    by_new_parameters(bound.model)
    gc.collect()
    assert (module(), weight()) == (None, None)


def test_ties_that_are_cut_are_tied_again_if_the_values_agree() -> None:
    bound = checked(Tied())
    assert [name for name, *_ in bound.arena.layout.tensors] == ["embed.weight", "body.weight", "body.bias"]
    by_state_dict(bound.model)
    assert bound.collect("train()") == ["embed.weight", "body.weight", "body.bias"]
    assert bound.model.head.weight is bound.model.embed.weight
    assert bound.collect("train()") == []
    bound.model.head.weight = nn.Parameter(torch.zeros(5, 3))
    with pytest.raises(ModelError, match=r"'embed\.weight' and 'head\.weight', which were tied, have different values"):
        bound.collect("train()")
    bound.restore("the round")
    assert bound.model.head.weight is bound.model.embed.weight


def test_tensors_over_the_same_memory_are_tied_though_they_are_two_objects() -> None:
    model = network()
    model[2].weight = nn.Parameter(torch.ones(3, 3))
    model[0].weight.data = model[2].weight.data
    bound = bind(model)
    assert "2.weight" not in bound.arena
    bound.arena["0.weight"][...] = 5.0
    assert torch.equal(model[2].weight.detach(), torch.full((3, 3), 5.0))
    by_data(model)
    assert bound.collect("train()")
    assert model[2].weight is not model[0].weight
    np.testing.assert_array_equal(bound.arena["0.weight"], 6.0)
    assert bound.collect("train()") == []


def test_memory_that_is_shared_in_part_is_refused() -> None:
    model = network()
    model.register_buffer("rows", model[0].weight.detach()[:2])
    with pytest.raises(ModelError, match=r"'rows' share memory|'rows' and '0\.weight' share memory"):
        bind(model)


def test_memory_that_is_shared_by_what_stays_at_home_is_not_refused() -> None:
    model = nn.Module()
    whole = torch.zeros(8)
    for name, part in {"whole": whole, "first": whole[:2], "last": whole[6:], "own": torch.ones(3)}.items():
        model.register_buffer(name, part)
    assert list(bind(model, "own").arena) == ["own"]
    for moving in ("whole", "last"):
        with pytest.raises(ModelError, match="share memory"):
            bind(model, moving)


class Wrapper(torch.Tensor):
    """A tensor that has no memory of its own, as quantised weights of some libraries."""

    @staticmethod
    def __new__(cls) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, (3, 3), dtype=torch.float32)

    def __repr__(self) -> str:  # type: ignore[override]
        return "Wrapper"

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if function is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(function)


def test_what_only_looks_like_a_tensor_may_stay_at_home_and_not_travel() -> None:
    model = network()
    model.register_buffer("packed", Wrapper())
    assert "packed" not in bind(model, "!packed").arena
    with pytest.raises(ModelError, match="'packed' is a Wrapper"):
        bind(model)
    bound = bind(network())
    del bound.model[0].weight
    bound.model[0].register_buffer("weight", Wrapper())
    with pytest.raises(ModelError, match=r"'0\.weight' is a Wrapper"):
        bound.collect("train()")


def test_names_do_not_say_that_a_model_is_compiled() -> None:
    wrapped: Any = torch.compile(network(), backend="eager")
    plain, compiled = bind(network()), bind(wrapped)
    assert plain.arena.layout == compiled.arena.layout


def test_a_module_that_has_no_shapes_yet_is_refused() -> None:
    with pytest.raises(ModelError, match="has no shape yet"):
        bind(nn.LazyLinear(3))


def test_a_recurrent_network_goes_on_working() -> None:
    bound = bind(nn.LSTM(3, 4))
    by_state_dict(bound.model)
    assert bound.collect("train()")
    with torch.no_grad():
        bound.arena["weight_ih_l0"][...] = 0
        bound.arena["bias_ih_l0"][...] = 0
    one, other = (bound.model(torch.full((1, 3), value))[0] for value in (0.0, 9.0))
    assert torch.equal(one, other), "it uses the arena's weights"


def test_a_model_of_the_same_layout_takes_the_arenas_values() -> None:
    first = bind(network())
    by_data(first.model)
    first.collect("train()")
    second = attach(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)), first.arena.core)
    assert agrees(second)
    said = r"differs from the job's: weight \(float32 \[3, 3\]\) is in this model and missing in the job's"
    with pytest.raises(ModelError, match=said):
        attach(nn.Linear(3, 3), first.arena.core)
    said = r"1\.weight is float32 \[4\] in this model and float32 \[3\] in the job's"
    with pytest.raises(ModelError, match=said):
        attach(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(4), nn.Linear(3, 2)), first.arena.core)


def arrays() -> dict[str, Any]:
    return {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(1.0), "n": np.zeros(0, np.int32)}


def test_arrays_are_views_that_may_be_replaced() -> None:
    bound = bind(arrays())
    bound.model["w"] += 1
    assert bound.collect("train()") == []
    assert bound.arena["w"][1, 2] == 6
    bound.model["w"] = bound.model["w"] * 2
    bound.model["b"] = bound.model["b"] + 1  # a NumPy scalar, not an array
    assert bound.collect("train()") == ["w", "b"]
    assert bound.arena["w"][1, 2] == 12
    assert bound.arena["b"] == 2
    bound.arena["w"][...] = 0
    assert not bound.model["w"].any()


def test_arrays_that_were_exchanged_keep_their_values() -> None:
    bound = bind({"a": np.zeros(3), "b": np.ones(3)})
    bound.model["a"], bound.model["b"] = bound.model["b"], bound.model["a"]
    assert bound.collect("train()") == ["a", "b"]
    assert bound.arena["a"].all()
    assert not bound.arena["b"].any()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"w": np.zeros((2, 3))}, r"'w' is float64\[2, 3\]; it was float32\[2, 3\]"),
        ({"w": np.zeros((3, 2), np.float32)}, r"'w' is float32\[3, 2\]"),
        ({"w": None}, r"'w' is object\[\]"),
        ({"x": np.zeros(1)}, "new array 'x'"),
    ],
)
def test_arrays_that_cannot_be_brought_back(change: dict[str, Any], words: str) -> None:
    bound = bind(arrays())
    bound.model.update(change)
    with pytest.raises(ModelError, match=words):
        bound.collect("train()")
    bound = bind(arrays())
    del bound.model["b"]
    with pytest.raises(ModelError, match="no array 'b'"):
        bound.collect("train()")


def test_arrays_with_bytes_in_another_order_are_converted() -> None:
    """Files in HDF5, FITS or NetCDF format give such arrays."""
    bound = bind({"w": np.array([1.5, 2.0], ">f4"), "n": np.array(256, ">i8")})
    assert bound.model["w"].dtype.isnative
    assert bound.arena["w"].tolist() == [1.5, 2.0]
    assert bound.arena["n"] == 256
    bound.model["w"] = np.array([3.0, -4.0], ">f4")
    assert bound.collect("train()") == ["w"]
    assert bound.arena["w"].tolist() == [3.0, -4.0]
    bound.model["w"] = bound.arena["w"].view(">f4")
    assert bound.restore("evaluate()") == ["w"], "the arena's bytes, read in another order, are other values"
    assert bound.model["w"].tolist() == [3.0, -4.0]


def test_arrays_may_be_narrow_floats() -> None:
    for kind in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        bound = bind({"w": np.array([0.5, 2.0], kind)})
        assert bound.model["w"].dtype == kind
        bound.model["w"] = bound.model["w"] + bound.model["w"]
        assert bound.collect("train()") == ["w"]
        assert bound.arena["w"].astype(np.float32).tolist() == [1.0, 4.0]


def test_one_array_under_two_names_is_refused() -> None:
    array = np.zeros(4)
    with pytest.raises(ModelError, match="'a' and 'b' share"):
        bind({"a": array, "b": array[2:]})


def test_what_a_dict_has_besides_arrays_stays_at_home() -> None:
    bound = bind({"w": np.zeros(2), "words": [[1], [2, 3]], "of": None}, "w")
    bound.model["words"].append(object())
    bound.model["more"] = object()
    assert bound.collect("train()") == []
    assert bound.model["words"][0] == [1]
    with pytest.raises(ModelError, match="'words' is a list"):
        bind({"w": np.zeros(2), "words": [[1], [2, 3]]})


@pytest.mark.parametrize("model", [None, [np.zeros(2)], np.zeros(2), 3])
def test_objects_that_are_no_models_are_refused(model: Any) -> None:
    with pytest.raises(ModelError, match="the model is a "):
        bind(model)


class Stateful(nn.Linear):
    """A layer with a value in its state_dict() that is no tensor, like layers that keep statistics."""

    scale = 1.0

    def get_extra_state(self) -> dict[str, float]:
        return {"scale": self.scale}

    def set_extra_state(self, state: dict[str, float]) -> None:
        self.scale = state["scale"]


def quantised(*layers: nn.Module) -> Any:
    """Return layers, the last of them quantised: its packed weights are in state_dict(), but are no parameters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that it will remove this function
        quantize: Any = torch.ao.quantization.quantize_dynamic
        return quantize(nn.Sequential(*layers, nn.Linear(4, 3)), {nn.Linear})


def said(bound: Binding) -> list[str]:
    """Return the error that is raised if two parties watch the same model."""
    notes: list[str] = []
    for _ in range(2):
        Watch(bound, notes.append)
    return notes


def test_state_entries_that_do_not_travel_are_reported_once() -> None:
    [note] = said(bind(nn.Sequential(nn.Linear(2, 2), Stateful(2, 2))))
    assert "state_dict() do not travel, each party keeps its own: '1._extra_state'. " in note
    compiled: Any = torch.compile(Stateful(2, 2))
    [note] = said(bind(compiled))
    assert ": '_extra_state'. " in note, "the name without torch.compile's part"
    [note] = said(bind(quantised(nn.Conv1d(4, 4, 1))))
    assert ": '1.scale', '1.zero_point', '1._packed_params.dtype'" in note
    [note] = said(bind(nn.ModuleList([Stateful(1, 1) for _ in range(9)])))
    assert ": '0._extra_state', " in note
    assert " and 3 more. " in note


@pytest.mark.parametrize("words", [["!*._extra_state"], "weight", ["trainable"]])
def test_reported_state_entries_are_not_reported_again(words: Any) -> None:
    model = Stateful(2, 2) if words != ["!*._extra_state"] else nn.Sequential(Stateful(2, 2))
    assert said(bind(model, words)) == []


def test_nothing_stays_of_models_whose_state_is_tensors() -> None:
    models: list[Any] = [network(), Tied(), nn.LSTM(2, 3), torch.compile(nn.Linear(2, 2)), {"w": np.zeros(2)}]
    for model in models:
        assert said(bind(model)) == []
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    assert said(bind(normed)) == []


def test_a_model_of_which_nothing_travels_is_refused() -> None:
    nothing: list[Any] = [{}, nn.ReLU()]
    for model in nothing:
        with pytest.raises(ModelError, match=r"has no tensor that travels\. Give it"):
            bind(model)
    with pytest.raises(ModelError, match=r"no tensor that travels; its state_dict\(\) has '0.scale', '0.zero_point', "):
        bind(quantised())
    with pytest.raises(ModelError, match="no tensor that travels"):
        attach(nn.ReLU(), _core.Arena(_core.Layout([])))


def test_a_copy_is_said_once() -> None:
    notes: list[str] = []
    bound = bind(network())
    watch = Watch(bound, notes.append)
    for _ in range(3):
        watch.train(by_data)
    assert len(notes) == 1
    assert "moved 6 tensors ('0.weight' and others) out of the arena" in notes[0]


def test_training_a_copy_is_said_once() -> None:
    notes: list[str] = []
    bound = bind(network())
    watch = Watch(bound, notes.append)
    for _ in range(3):
        watch.train(lambda model: by_data(copy.deepcopy(model)))
    assert len(notes) == 1
    assert "changed none of the" in notes[0]


def test_evaluation_sees_the_arena_and_leaves_it_as_it_is() -> None:
    notes: list[str] = []
    bound = bind(network())
    watch = Watch(bound, notes.append)
    by_data(bound.model)
    before = bytes(np.asarray(bound.arena.core))

    def careless(model: Any) -> torch.Tensor:
        seen: torch.Tensor = model[0].weight.detach().clone()
        by_data(model)
        return seen

    seen = watch.evaluate(careless)
    np.testing.assert_array_equal(seen, bound.arena["0.weight"])
    assert bytes(np.asarray(bound.arena.core)) == before
    assert agrees(bound)
    assert len(notes) == 2
    with pytest.raises(ModelError, match=r"after evaluate\(\)"):
        watch.evaluate(half)


def test_a_thousand_tensors_are_looked_at_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = bind(nn.ModuleList(nn.Linear(2, 2) for _ in range(500)))
    asked = 0

    def counted(module: nn.Module) -> Any:
        nonlocal asked
        by_name = slots(module)
        asked += len(by_name)
        return by_name

    monkeypatch.setattr("thalweg.tensors.binding.slots", counted)
    assert bound.collect("train()") == []
    assert asked == 1000
    assert bound.collect("train()") == []
    assert asked == 1000, "a model as it was needs no second look"
    assert isinstance(bound.arena.core, _core.Arena)
