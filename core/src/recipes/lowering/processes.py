"""Lower captured programs in another process, and return what a session needs."""

from __future__ import annotations

import io
import os
import pickle
import tempfile
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any

import torch
from executorch.export import StageType
from executorch.export.stages import EdgeProgramManagerTransformStage, PipelineArtifact, Stage
from torch.export import ExportedProgram

from recipes.common import Finding
from recipes.executorch import Fallback, MethodDelegation, StageProgress, WatchedStage, delegations
from recipes.lowering.pipeline import lowering_stages
from recipes.recipe import ExportRecipe


@dataclass(frozen=True)
class MadeData:
    """The content of a data file, with those methods of ExecuTorch's class that the other modules use."""

    content: bytes

    def __len__(self) -> int:
        return len(self.content)

    def write_to_file(self, file: IO[bytes]) -> None:
        """Write the content."""
        file.write(self.content)


class MadeProgram:
    """A program from another process, with the methods of `ExecutorchProgramManager` that read it.

    Args:
        buffer: The content of the `.pte` file.
        data: The content of each data file.
    """

    def __init__(self, buffer: bytes, data: Mapping[str, bytes]) -> None:
        self.buffer = buffer
        self._tensor_data = {name: MadeData(content) for name, content in data.items()}

    def write_to_file(self, file: IO[bytes]) -> None:
        """Write the `.pte` file."""
        file.write(self.buffer)


@dataclass(frozen=True)
class Lowered:
    """The result of lowering.

    Args:
        buffer: The content of the `.pte` file.
        data: The content of each data file.
        delegations: How each method is divided among backends.
        fallbacks: The ops that a backend claimed and could not compile.
        findings: The warnings.
        events: The progress of the stages.
    """

    buffer: bytes
    data: dict[str, bytes]
    delegations: tuple[MethodDelegation, ...]
    fallbacks: tuple[Fallback, ...]
    findings: tuple[Finding, ...]
    events: tuple[StageProgress, ...]


def lower(programs: Mapping[str, str], rest: bytes) -> Lowered:
    """Lower programs from files; this runs in the other process.

    Args:
        programs: The file of each captured program, by method.
        rest: The bytes that `pickled` returned.
    """
    recipe, constant_methods, strict = pickle.loads(rest)
    events: list[StageProgress] = []
    findings: list[Finding] = []
    stages: dict[StageType, Stage] = lowering_stages(recipe, strict=strict)
    lowering = recipe.lowering_recipe
    if lowering is not None and lowering.edge_manager_transform_passes:
        middle = {StageType.EDGE_PROGRAM_MANAGER_TRANSFORM: EdgeProgramManagerTransformStage.from_recipe(lowering)}
        (first, lower_stage), (last, make_stage) = stages.items()
        stages = {first: lower_stage, **middle, last: make_stage}
    artifact = PipelineArtifact(
        {method: torch.export.load(file) for method, file in programs.items()}, {"constant_methods": constant_methods}
    )
    artifacts = {}
    for stage_type, stage in stages.items():
        watched = WatchedStage(stage, recipe, events.append, findings)
        watched.run(artifact)
        artifact = artifacts[stage_type] = watched.get_artifacts()
    manager = artifacts[StageType.TO_EXECUTORCH].data
    return Lowered(
        buffer=manager.buffer,
        data={name: _content(data.write_to_file) for name, data in (manager._tensor_data or {}).items()},
        delegations=delegations(artifacts[StageType.TO_EDGE_TRANSFORM_AND_LOWER].data),
        fallbacks=tuple(stages[StageType.TO_EDGE_TRANSFORM_AND_LOWER].fallbacks),
        findings=tuple(findings),
        events=tuple(events),
    )


def _content(write: Callable[[IO[bytes]], Any]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def pickled(recipe: ExportRecipe, constant_methods: Mapping[str, Any] | None, *, strict: bool) -> bytes:
    """Pickle what `lower` needs in addition to the programs.

    Args:
        recipe: The recipe to lower with.
        constant_methods: As in `recipes.export`.
        strict: As `strict_delegation` of `recipes.export`.

    Raises:
        Exception: Something in the arguments cannot be pickled, such as a function inside a function.
    """
    file = io.BytesIO()
    # The programs are quantized already.
    _Pickler(file).dump((recipe.derive(quantization_recipe=None), constant_methods, strict))
    return file.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Pickle read-only mappings, of which every partitioner has one."""
        return (_read_only, (dict(value),)) if isinstance(value, types.MappingProxyType) else NotImplemented


def _read_only(mapping: dict[Any, Any]) -> Mapping[Any, Any]:
    return types.MappingProxyType(mapping)


class CapturedFiles:
    """A context that writes each captured program to a file once, and removes the files at the end."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="recipes-")
        self._files: dict[int, tuple[str, ExportedProgram]] = {}

    def __enter__(self) -> CapturedFiles:
        return self

    def __exit__(self, *error: object) -> None:
        self._folder.cleanup()

    def file(self, program: ExportedProgram) -> str:
        """Return the file of a program; it is written if it is not there yet."""
        if id(program) not in self._files:
            path = os.path.join(self._folder.name, f"{len(self._files)}.pt2")
            torch.export.save(program, path)
            self._files[id(program)] = path, program  # kept, so that no other can get its id
        return self._files[id(program)][0]
