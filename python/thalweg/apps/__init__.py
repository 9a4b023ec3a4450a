"""The user's own apps: how a plan names an app, how it is loaded, and how its methods are called.

An app is an object with ``model()`` and ``train(model, data, config)``. It may have ``client_data(name, index, clients,
seed)`` or ``train_data()`` for a client's data, ``test_data()`` and ``evaluate(model, data)`` for the server, and
``tensors``, which says which tensors travel. docs/how-to/own-model.md describes them.
"""

from __future__ import annotations

import importlib
import importlib.util
import operator
import random
import sys
import traceback
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypedDict, TypeVar

from typing_extensions import NotRequired

from thalweg import extras
from thalweg.apps.received_config import ReceivedConfig
from thalweg.errors import AppError, PlanError, ThalwegError
from thalweg.wire import Table

T = TypeVar("T")

# The prefix of a Flower app's folder in the name of an app.
FLOWER: Final = "flower:"
FORM: Final = "Write module:object as my_app:App, or path/to/file.py:object"
HOOKS: Final = "An app has model() and train(model, data, config); see docs/how-to/own-model.md"
NEEDED: Final = ("model", "train")
EVALUATING: Final = "Give it test_data() and evaluate(model, data), or remove job.evaluate"
# Errors quote at most this many characters of a value.
LONGEST: Final = 80
# Seeds have 32 bits, because NumPy takes no larger ones.
NUMPY_SEEDS: Final = 1 << 32


@dataclass(frozen=True)
class Part:
    """A client's place in its job: its name, its index from 0, the number of clients, and the job's seed."""

    name: str
    index: int
    clients: int
    seed: int


def load(text: str, options: Table | None = None) -> Any:
    """Return the app that ``module:object`` or ``path/to/file.py:object`` names.

    A module is searched first in the working directory; the path of a file is relative to that. If the object is a
    class or a function, it is called with ``options`` as keyword arguments; any other object is the app itself. Raises
    PlanError.
    """
    place, colon, attribute = text.rpartition(":")
    if text.startswith(FLOWER):
        folder = text.removeprefix(FLOWER)
        raise PlanError(
            f"{text} is a Flower app",
            f"Run it with: thalweg flower run {folder}; between machines with thalweg flower server and client",
        )
    if not colon or not place or not attribute:
        raise PlanError(f"{text!r} does not name an app", FORM)
    attribute_value = _attribute(_module(text, place), text, attribute)
    app = _made(attribute_value, text, dict(options or {}))
    missing = [hook for hook in NEEDED if not callable(getattr(app, hook, None))]
    if missing:
        raise PlanError(f"the app {text} has no {missing[0]}()", HOOKS)
    return app


def name_of(app: Any) -> str:
    """Return the name of an app's class for ``thalweg run --app``: my_app:App, or path/to/file.py:App for a script."""
    kind = app if isinstance(app, type) else type(app)
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    place = file if kind.__module__ == "__main__" and file is not None else kind.__module__
    return f"{place}:{kind.__qualname__}"


class AppFacts(TypedDict):
    """What the manifest says of an app. Of the app of a ``thalweg.Server`` it has the first and the last key alone."""

    object: str
    options: NotRequired[Mapping[str, object]]
    sha256: NotRequired[str | None]
    file: str | None


def facts(text: str, options: Table | None) -> AppFacts:
    """Return the facts about a loaded app for the record: its name and options, its file, and the hash of that file."""
    file, content = _source(text)
    digest = None if content is None else sha256(content).hexdigest()
    return {"object": text, "options": dict(options or {}), "file": file, "sha256": digest}


def says(text: str, word: str) -> bool:
    """Return whether the file of a loaded app contains a word."""
    _, content = _source(text)
    return content is not None and word.encode() in content


def _source(text: str) -> tuple[str | None, bytes | None]:
    """Return the path and the content of a loaded app's file, each None if there is none."""
    place = text.rpartition(":")[0]
    name = Path(place).stem if place.endswith(".py") else place
    file = getattr(sys.modules.get(name), "__file__", None)
    return file, Path(file).read_bytes() if file is not None and Path(file).is_file() else None


def changed(before: object, now: AppFacts) -> str | None:
    """Return a warning if an app's file has changed since its record was made; None if not, or if it is unknown."""
    kept = before.get("sha256") if isinstance(before, Mapping) else None
    digest = now.get("sha256")
    if kept is None or digest is None or kept == digest:
        return None
    return f"{now['file']} has changed since this run began: its next rounds are of another app"


def part_of(name: str, config: ReceivedConfig) -> Part | None:
    """Return the place of client ``name`` from the config that the server sends with a round; None if it lacks that."""
    names, clients, seed = (config.values.get(key) for key in ("names", "clients", "seed"))
    if not (isinstance(names, list) and isinstance(clients, int) and isinstance(seed, int) and clients > 0 <= seed):
        return None
    return Part(name, place_of(name, names, clients), clients, seed)


def place_of(name: str, names: Sequence[str], clients: int) -> int:
    """Return the index of client ``name``'s part of the data, from 0 to ``clients`` - 1.

    For a client that joined after the round's list was made, the index follows from its name.
    """
    place = names.index(name) if name in names else zlib.crc32(name.encode())
    return place % clients


def model_of(app: Any, seed: int | None = None) -> Any:
    """Return a new model of an app. With a seed, its initial values follow from the seed. Raises AppError."""
    if seed is not None:
        seed_all(seed)
    return ask(app.model, "model()")


def client_data(app: Any, part: Part | None) -> Any:
    """Return a client's data: from ``client_data``, else from ``train_data``, else None. Raises AppError, PlanError."""
    if hasattr(app, "client_data"):
        if part is None:
            raise PlanError("the server does not say which clients there are", "Use the same version on both sides")
        return ask(lambda: app.client_data(**asdict(part)), "client_data()")
    return ask(app.train_data, "train_data()") if hasattr(app, "train_data") else None


def own_tensors(app: Any, tensors: str | Sequence[str] | None) -> list[str] | None:
    """Return which tensors travel: ``tensors`` if given, else those of the app; None for all tensors.

    Raises ModelError for an invalid pattern.
    """
    from thalweg.tensors.choosing import Choice

    return Choice(getattr(app, "tensors", None) if tensors is None else tensors).words or None


def check_rounds(app: Any, *, late: bool = False, partial: bool = False, compressed: bool = False) -> None:
    """Raise PlanError if the app says that such updates cannot count in its rounds.

    ``late``: in a later round than that whose model was trained. ``partial``: only in part, because the rest was lost.
    ``compressed``: as differences, with what earlier differences left out.
    """
    if late and not getattr(app, "takes_late_updates", True):
        raise PlanError(
            "a late update would count in the round of another fragment",
            "Remove aggregation.stale, or the server's stale, or exchange the model whole (fragments=1)",
        )
    if partial and not getattr(app, "takes_partial_updates", True):
        raise PlanError(
            "the last value of a fragment says whether all its other values count, so a part of one cannot count",
            "Take aggregation.partial = 'discard' and repair.resend = true, which are the defaults",
        )
    if compressed and not getattr(app, "takes_compressed_updates", True):
        raise PlanError(
            "what compression leaves out of a fragment would be added to the next round's, which is another fragment",
            "Remove compression.scheme, or the server's compression; without a server, diloco has compress",
        )


def evaluates(app: Any) -> bool:
    """Return whether the server can evaluate the app's model: the app has ``test_data`` and ``evaluate``."""
    return all(callable(getattr(app, hook, None)) for hook in ("test_data", "evaluate"))


def trained(returned: Any) -> tuple[int, dict[str, object]]:
    """Return the samples and metrics that ``train()`` returned. Raises AppError if ``returned`` is anything else."""
    try:
        samples, metrics = returned
        count, figures = operator.index(samples.item() if hasattr(samples, "item") else samples), dict(metrics)
    except (TypeError, ValueError):
        count, figures = -1, {}
    if count < 0:
        text = repr(returned)
        raise AppError(
            f"train() of the app returned {text if len(text) <= LONGEST else text[:LONGEST] + '...'}",
            "Return (samples, metrics): a whole number, and a dict that may be empty",
        )
    return count, figures


def ask(hook: Callable[[], T], name: str) -> T:
    """Call a hook of an app and return its result. Raises AppError, which names the hook, if the hook raises."""
    try:
        return hook()
    except ThalwegError:
        raise
    except Exception as error:
        raise AppError(
            f"{name} of the app raised {described(error)}", "Correct the app; the traceback is above"
        ) from error


def described(error: BaseException) -> str:
    """Return an exception on one line: its type, its text, and the line of code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{f': {text}' if text else ''}{where}"


def seed_all(*parts: int) -> None:
    """Seed the generators of Python and NumPy, and of PyTorch if it has been imported, from whole numbers."""
    import numpy as np

    state = int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0])
    random.seed(state)
    np.random.seed(state % NUMPY_SEEDS)  # for apps that use NumPy's global generator
    if "torch" in sys.modules:
        import torch

        torch.manual_seed(state)


def _module(text: str, place: str) -> Any:
    """Return the module in a file, or with a name. Its folder stays on the path, for later imports of the app."""
    is_file = place.endswith(".py")
    path = Path(place).resolve()
    if is_file and not path.is_file():
        raise PlanError(f"cannot load the app {text}: there is no file {path}", "Give its path from this folder")
    folder = str(path.parent if is_file else Path.cwd())
    sys.path.insert(0, folder)
    try:
        return _from_file(path) if is_file else importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name != place.partition(".")[0] and error.name != place:
            missing = (error.name or "what it imports").partition(".")[0]
            hint = extras.hint(missing) if missing in extras.EXTRAS else f"Install {missing}"
            raise PlanError(f"cannot load the app {text}: {described(error)}", hint) from error
        raise PlanError(
            f"cannot load the app {text}: no module {error.name!r} in {folder} or among what is installed",
            "Start it in the folder of the module, or give the path of its file as path/to/file.py:object",
        ) from error
    except (Exception, SystemExit) as error:
        raise PlanError(f"cannot load the app {text}: it raised {described(error)}", "Correct the app") from error
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)


def _from_file(path: Path) -> Any:
    """Return the module of a file, named like the file. It is loaded only once."""
    loaded = sys.modules.get(path.stem)
    if loaded is not None and Path(getattr(loaded, "__file__", None) or "").resolve() == path:
        return loaded
    if loaded is not None:
        raise PlanError(f"{path} has the name of a module that is loaded: {path.stem}", "Give the file another name")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise PlanError(f"{path} is no Python file", FORM)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


def _attribute(module: Any, text: str, path: str) -> Any:
    from difflib import get_close_matches

    value = module
    for name in path.split("."):
        if not hasattr(value, name):
            near = get_close_matches(name, vars(value) if hasattr(value, "__dict__") else (), n=1)
            guess = f"Did you mean {near[0]!r}? " if near else ""
            raise PlanError(f"cannot load the app {text}: it has no {name!r}", f"{guess}{FORM}")
        value = getattr(value, name)
    return value


def _made(target: Any, text: str, options: Table) -> Any:
    """Return the app: the result of a class or function, or the object itself."""
    is_app = not isinstance(target, type) and all(callable(getattr(target, hook, None)) for hook in NEEDED)
    if is_app or not callable(target):
        if options:
            raise PlanError(
                f"the app {text} is an object, which takes no options", "Remove app.options, or name a class"
            )
        return target
    try:
        return target(**options)
    except ThalwegError:
        raise
    except Exception as error:
        arguments = ", ".join(f"{key}={value!r}" for key, value in options.items())
        raise PlanError(
            f"cannot make the app {text}({arguments}): it raised {described(error)}", "Correct the app, or app.options"
        ) from error
