"""The manifest beside a saved program: what it was made from, what an app needs to run it, and the report."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import importlib_metadata
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import bound_sympy

from recipes.artifact.report import Artifacts, make_report
from recipes.common import Writer, finish_saving
from recipes.recipe import ExportRecipe

FORMAT = "recipes-manifest"
VERSION = 1
"""It rises if a key is removed or changes its meaning, so that readers must change. New keys do not count."""

_CHUNK = 1 << 20
_READ = ("sha256", "data_files", "fingerprint", "recipe", "versions", "methods")
"""The keys that inspection and verification read."""

_ALWAYS = ("recipes-core", "executorch", "torch", "torchao")


@dataclass(frozen=True)
class ManifestState:
    """A program's manifest, and whether it describes the program.

    Args:
        manifest: Its contents; None if there is no manifest or it cannot be read.
        problem: Why the manifest does not describe this program; empty if it does, or if there is none.
    """

    manifest: dict[str, Any] | None
    problem: str = ""


def manifest_path(program: Path) -> Path:
    """`model.pte.json` for `model.pte`."""
    return program.with_name(f"{program.name}.json")


def read_manifest(program: Path) -> ManifestState:
    """Read the manifest of a program, and compare the program and its data files with it.

    A save that was interrupted is completed first, so that the files belong together.

    Args:
        program: The `.pte` file.

    Raises:
        SaveError: A save was interrupted and cannot be completed.
    """
    if not program.name:
        return ManifestState(None)
    finish_saving(program)
    path = manifest_path(program)
    try:
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError:
        return ManifestState(None)
    except (OSError, ValueError) as error:
        return ManifestState(None, f"{path.name} cannot be read: {error}.")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        return ManifestState(None, f"{path.name} is not a manifest.")
    if manifest.get("version") != VERSION:
        return ManifestState(
            None, f"{path.name} has version {manifest.get('version')}; this version of recipes reads version {VERSION}."
        )
    lacking = [key for key in _READ if key not in manifest]
    if lacking:
        return ManifestState(None, f"{path.name} is damaged: it lacks {', '.join(lacking)}.")
    try:
        files = [manifest, *manifest["data_files"]]
        for file in files:
            name = program.name if file is manifest else file["file"]
            if _digest_of_file(program.with_name(name)) != file["sha256"]:
                return ManifestState(manifest, f"{name} is not the file that {path.name} was written for.")
    except FileNotFoundError as error:
        return ManifestState(manifest, f"{Path(error.filename).name}, which {path.name} names, is missing.")
    except (KeyError, TypeError, ValueError) as error:
        return ManifestState(None, f"{path.name} is damaged: {type(error).__name__}: {error}.")
    return ManifestState(manifest)


def _digest_of_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def writers(destination: Path, made: Artifacts, digest: str) -> dict[Path, Writer]:
    """Return the functions that write a program, its data files and its manifest, for `write_atomically`.

    Args:
        destination: The file of the program; the other files are written beside it.
        made: The results of the export, with a program.
        digest: The result of `program_digest` for it.
    """
    program = made.program
    assert program is not None
    recorded: dict[str, _Recorder] = {}

    def recording(name: str, write: Callable[[Any], Any]) -> Writer:
        def record(file: IO[bytes]) -> None:
            recorder = recorded[name] = _Recorder(file)
            write(recorder)

        return record

    found = {destination: recording(destination.name, program.write_to_file)}
    # ExecuTorch's public API can only write the data files in place.
    for name, data in (program._tensor_data or {}).items():
        found[destination.with_name(f"{name}.ptd")] = recording(f"{name}.ptd", data.write_to_file)

    def write_manifest(file: IO[bytes]) -> None:
        main, *data = (record.facts(name) for name, record in recorded.items())
        text = json.dumps(_manifest(made, digest, main, data), indent=1, default=str)
        file.write(text.encode() + b"\n")

    found[manifest_path(destination)] = write_manifest
    return found


class _Recorder:
    """A writable file that computes the digest of what is written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._bytes = 0

    def write(self, data: bytes) -> int:
        self._digest.update(data)
        self._bytes += len(data)
        return self._file.write(data)

    def facts(self, name: str) -> dict[str, Any]:
        return {"file": name, "bytes": self._bytes, "sha256": self._digest.hexdigest()}


def _manifest(
    made: Artifacts, digest: str, main: Mapping[str, Any], data: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    contents = made.contents
    assert contents is not None
    methods = []
    for method in contents.methods:
        program = made.captured.get(method.name)
        signature = _signature(program) if program is not None else {}
        methods.append({**asdict(method), **signature})
    versions = _versions(made.recipe)
    return {
        "format": FORMAT,
        "version": VERSION,
        **main,
        "data_files": list(data),
        "fingerprint": fingerprint(made.recipe, digest, versions),
        "recipe": made.recipe.explain().to_dict(),
        "versions": versions,
        "host": {"python": platform.python_version(), "platform": platform.platform()},
        "backends": contents.backends,
        "kernels": contents.kernels,
        "sizes": contents.sizes,
        "methods": methods,
        "report": make_report(made).to_dict(),
    }


def _signature(program: ExportedProgram) -> dict[str, Any]:
    """The inputs and outputs of a captured method, with names, and the range of each dynamic size."""
    nodes = {node.name: node for node in program.graph.nodes}

    def described(arg: Any) -> dict[str, Any]:
        value = arg.value if isinstance(arg, ConstantArgument) else nodes[arg.name].meta.get("val")
        return _described(arg.name, value, program)

    signature = program.graph_signature
    return {
        "inputs": [described(spec.arg) for spec in signature.input_specs if spec.kind == InputKind.USER_INPUT],
        "outputs": [described(spec.arg) for spec in signature.output_specs if spec.kind == OutputKind.USER_OUTPUT],
    }


def _described(name: str, value: Any, program: ExportedProgram) -> dict[str, Any]:
    if not isinstance(value, torch.Tensor):
        number = {torch.SymInt: "int", torch.SymFloat: "float", torch.SymBool: "bool", type(None): "null"}
        kind = number.get(type(value), type(value).__name__)
        plain = value if isinstance(value, bool | int | float | str) else None
        return {"name": name, "kind": kind, "dtype": "", "shape": [], "dynamic": [], "value": plain}
    dynamic: list[dict[str, Any]] = []
    for dim, length in enumerate(value.shape):
        if isinstance(length, torch.SymInt):
            bounds = bound_sympy(length.node.expr, program.range_constraints)
            top = None if bounds.upper is int_oo else int(bounds.upper)
            dynamic.append({"dim": dim, "size": str(length), "min": int(bounds.lower), "max": top})
    return {
        "name": name,
        "kind": "tensor",
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": [int(n.node.hint) if isinstance(n, torch.SymInt) else int(n) for n in value.shape],
        "dynamic": dynamic,
    }


def _versions(recipe: ExportRecipe) -> dict[str, str]:
    """The versions of recipes-core, ExecuTorch, torch, torchao, the plugins, and the requirements of the plugins."""
    names = dict.fromkeys(_ALWAYS)
    for origin in recipe.explain().provenance.origins:
        for source in origin.sources:
            if source.distribution:
                names[canonicalize_name(source.distribution)] = None
                names |= dict.fromkeys(_needed_by(source.distribution))
    versions = {}
    for name in names:
        try:
            versions[str(name)] = str(importlib_metadata.version(name))
        except importlib_metadata.PackageNotFoundError:
            continue  # another package fulfils the requirement, or the plugin is not installed as a package
    return dict(sorted(versions.items()))


def _needed_by(distribution: str) -> Iterator[str]:
    try:
        requirements = importlib_metadata.requires(distribution) or []
    except importlib_metadata.PackageNotFoundError:
        return
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield canonicalize_name(requirement.name)


def fingerprint(recipe: ExportRecipe, digest: str, versions: Mapping[str, str]) -> str:
    """A digest that is equal for equal recipes, options, models, weights and versions.

    The bytes from a compiler may differ although the fingerprint is equal.

    Args:
        recipe: The recipe in use.
        digest: The result of `program_digest`.
        versions: The versions of the packages that were used.
    """
    lowering = recipe.lowering_recipe
    partitioners: Any = (lowering.partitioners if lowering else None) or ()
    compile_specs = [
        [
            str(getattr(spec, "backend_id", "")),
            [[s.key, hashlib.sha256(s.value).hexdigest()] for s in getattr(spec, "compile_specs", ())],
        ]
        for partitioner in tree_leaves(partitioners)
        if (spec := getattr(partitioner, "delegation_spec", None)) is not None
    ]
    text = json.dumps([recipe.explain().to_dict(), compile_specs, digest, dict(versions)], sort_keys=True, default=str)
    # An object's address in memory is not part of a recipe.
    return hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", text).encode()).hexdigest()


def program_digest(captured: Mapping[str, ExportedProgram], constant_methods: Mapping[str, Any] | None) -> str:
    """Return the digest of captured methods: their graphs, shapes, ranges and weights. No weight is copied.

    Args:
        captured: The captured program of each method.
        constant_methods: As in `recipes.export`.
    """
    digest = hashlib.sha256()
    for method, program in sorted(captured.items()):
        signature = program.graph_signature
        ranges = {str(symbol): str(bounds) for symbol, bounds in program.range_constraints.items()}
        digest.update(f"method {method} {signature!r} {ranges}".encode())
        for name, module in program.graph_module.named_modules():
            if isinstance(module, GraphModule):
                digest.update(f"graph {name}".encode())
                for node in module.graph.nodes:
                    digest.update(f"{node.format_node()} {_shapes(node.meta.get('val'))}".encode())
        for name, value in sorted([*program.state_dict.items(), *program.constants.items()], key=lambda item: item[0]):
            _update(digest, name, value)
    for name, value in sorted((constant_methods or {}).items()):
        for leaf in tree_leaves(value() if callable(value) else value):
            _update(digest, name, leaf)
    return digest.hexdigest()


def _shapes(value: Any) -> list[str]:
    return [
        f"{leaf.dtype}{tuple(leaf.shape)}" if isinstance(leaf, torch.Tensor) else type(leaf).__name__
        for leaf in tree_leaves(value)
    ]


def _update(digest: Any, name: str, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        digest.update(f"{name} {value if isinstance(value, bool | int | float | str) else type(value)}".encode())
        return
    flatten = getattr(value, "__tensor_flatten__", None)
    if flatten is not None:  # torchao stores a quantized weight as several tensors
        parts, context = flatten()
        digest.update(f"{name} {type(value).__name__} {context}".encode())
        for part in parts:
            _update(digest, f"{name}.{part}", getattr(value, part))
        return
    digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
    plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)


def described_inputs(state: ManifestState) -> dict[str, list[dict[str, Any]]]:
    """The inputs of each method in a manifest, with names and dynamic ranges.

    Args:
        state: The manifest.
    """
    methods = (state.manifest or {}).get("methods", ())
    return {method["name"]: method["inputs"] for method in methods if isinstance(method.get("inputs"), list)}
