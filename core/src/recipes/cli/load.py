"""The command line's argument MODEL: its form is checked first, then it is loaded."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import traceback
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from recipes.common import ArgumentError, did_you_mean

ARGUMENTS = ("model", "example_inputs", "dynamic_shapes", "calibration_inputs", "constant_methods")
"""The arguments of `recipes.export` that a factory may return."""

_FORMS = "MODEL is package.module:factory, path/to/file.py:factory or path/to/program.pt2"


def make_importable(folder: Path) -> None:
    """Put a folder in front of `sys.path`, as `python` does with the folder of a script."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


@dataclass(frozen=True)
class ModelReference:
    """What MODEL names.

    Args:
        text: MODEL as it was given.
        path: The `.pt2` or `.py` file, or None where `module` is importable by name.
        module: The module's name; empty for a `.pt2` file.
        factory: The factory's name in the module, dotted where it is nested; empty for a `.pt2` file.
    """

    text: str
    path: Path | None
    module: str = ""
    factory: str = ""

    @staticmethod
    def parse(text: str) -> ModelReference:
        """Parse MODEL and check all that can be checked without importing it.

        Raises:
            ArgumentError: It has no valid form, or there is no such file or module.
        """
        if text.endswith(".pt2"):
            path = Path(text)
            _check_file(text, path)
            _check_archive(path)
            return ModelReference(text, path)
        place, colon, factory = text.rpartition(":")
        if text.endswith(".py"):
            raise ArgumentError(f"MODEL {text!r} names a file but no factory in it. Write {text}:factory.")
        if not colon or not all(part.isidentifier() for part in factory.split(".")):
            raise ArgumentError(f"MODEL {text!r} is not valid. {_FORMS}.")
        if place.endswith(".py"):
            path = Path(place)
            _check_file(text, path)
            # A separate name, so that a file called json.py does not replace the module json.
            return ModelReference(text, path, f"recipes_model_{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}", factory)
        if not all(part.isidentifier() for part in place.split(".")):
            raise ArgumentError(f"MODEL {text!r} is not valid: {place!r} is not a module name. {_FORMS}.")
        top = place.partition(".")[0]
        if top not in sys.modules and importlib.util.find_spec(top) is None:
            raise ArgumentError(
                f"MODEL {text!r}: there is no module {top!r} in the current folder or among the installed packages."
            )
        return ModelReference(text, None, place, factory)

    def load(self) -> dict[str, Any]:
        """Import the module and call the factory; return arguments for `recipes.export` by name.

        Raises:
            ArgumentError: The module or the factory fails, or the factory returns something else.
        """
        if not self.module:
            return {"model": self.path}
        factory = self._factory()
        try:
            given = factory()
        except (Exception, SystemExit) as error:
            raise ArgumentError(f"MODEL {self.text!r}: the factory raised {_describe(error)}") from error
        return self._arguments(given)

    def _import(self) -> ModuleType:
        try:
            if self.path is None:
                return importlib.import_module(self.module)
            make_importable(self.path.parent.resolve())
            spec = importlib.util.spec_from_file_location(self.module, self.path)
            assert spec is not None, "the path ends in .py"
            assert spec.loader is not None, "the path ends in .py"
            module = importlib.util.module_from_spec(spec)
            sys.modules[self.module] = module  # dataclasses and pickle look modules up there
            spec.loader.exec_module(module)
            return module
        except (Exception, SystemExit) as error:
            if isinstance(error, ModuleNotFoundError) and f"{self.module}.".startswith(f"{error.name}."):
                raise ArgumentError(f"MODEL {self.text!r}: there is no module {error.name!r}.") from error
            raise ArgumentError(f"MODEL {self.text!r}: importing it raised {_describe(error)}") from error

    def _factory(self) -> Any:
        found: Any = self._import()
        for part in self.factory.split("."):
            names = [name for name in dir(found) if not name.startswith("_")]
            if not hasattr(found, part):
                where = self.path or self.module
                raise ArgumentError(f"MODEL {self.text!r}: {where} has no {self.factory!r}.{did_you_mean(part, names)}")
            found = getattr(found, part)
        # A torch module is callable too, but with inputs; torch is imported by now if this is one.
        torch = sys.modules.get("torch")
        if not callable(found) or (torch is not None and isinstance(found, torch.nn.Module)):
            raise ArgumentError(
                f"MODEL {self.text!r} names a {type(found).__name__}; it must name a function without parameters "
                "that returns (model, example_inputs)."
            )
        return found

    def _arguments(self, given: Any) -> dict[str, Any]:
        if isinstance(given, Mapping):
            for key in given:
                if key not in ARGUMENTS:
                    raise ArgumentError(
                        f"MODEL {self.text!r}: the factory returned the key {key!r}."
                        f"{did_you_mean(str(key), ARGUMENTS)} Keys: {', '.join(ARGUMENTS)}."
                    )
            if "model" not in given:
                raise ArgumentError(f"MODEL {self.text!r}: the factory returned a dict without the key 'model'.")
            arguments = dict(given)
            samples = arguments.get("calibration_inputs")
            if isinstance(samples, Mapping):
                arguments["calibration_inputs"] = {method: _repeatable(each) for method, each in samples.items()}
            elif samples is not None:
                arguments["calibration_inputs"] = _repeatable(samples)
            return arguments
        if isinstance(given, tuple) and len(given) == 2:
            return {"model": given[0], "example_inputs": given[1]}
        got = f"a tuple of {len(given)}" if isinstance(given, tuple) else f"a {type(given).__name__}"
        raise ArgumentError(
            f"MODEL {self.text!r}: the factory must return (model, example_inputs), or a dict with the keys "
            f"{', '.join(ARGUMENTS)}; it returned {got}."
        )


def saved_inputs(path: str) -> Any:
    """The inputs in a file that was written with `torch.save`; only tensors and plain containers are read.

    Args:
        path: The file.

    Raises:
        ArgumentError: There is no such file, or it contains something else.
    """
    import torch

    try:
        return torch.load(path, weights_only=True)
    except FileNotFoundError:
        raise ArgumentError(f"--inputs {path!r}: the file does not exist.") from None
    except Exception as error:
        raise ArgumentError(
            f"--inputs {path!r} cannot be read ({type(error).__name__}). Write it with torch.save((tensor, ...), path)."
        ) from error


def _repeatable(samples: Any) -> Any:
    """Samples that every target can iterate over; the first target would exhaust an iterator."""
    return list(samples) if isinstance(samples, Iterator) else samples


def _check_file(text: str, path: Path) -> None:
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise ArgumentError(f"MODEL {text!r}: the file {path} {what}.")


def _check_archive(path: Path) -> None:
    """A .pt2 file is a zip file; a truncated one has lost the table at its end."""
    if not zipfile.is_zipfile(path):
        raise ArgumentError(
            f"MODEL '{path}' is damaged, or was not written with torch.export.save. "
            "Write it again with torch.export.save(torch.export.export(model, args), path)."
        )


def _describe(error: BaseException) -> str:
    """`ValueError: text (models.py, line 3)`: the exception, and the last line that it passed through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    inside = [f for f in frames if f.filename != __file__]
    where = f" ({inside[-1].filename}, line {inside[-1].lineno})" if inside else ""
    return f"{type(error).__name__}: {error}{where}"
