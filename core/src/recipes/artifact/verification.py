"""Compare the result of an export with its model, as far as this host can run it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves, tree_map

from recipes.arguments import models_by_method, samples_by_method
from recipes.artifact.comparison import Sample, Verification, compare
from recipes.artifact.inputs import made_up, range_ends, varied
from recipes.artifact.manifest import described_inputs, read_manifest
from recipes.artifact.report import Artifacts
from recipes.artifact.running import ProgramRun, run_program
from recipes.common import ArgumentError, write_atomically
from recipes.executorch import Contents, Method, Value, contents_of_file, quantized_nodes

if TYPE_CHECKING:
    pass


TIMEOUT = 600.0
"""Seconds for running a program on this host."""

_PROGRAM = "program on this host"
_QUANTIZED = "quantized model in PyTorch"


def verify_session(made: Artifacts, samples: Mapping[str, list[Any]], inputs: Any, timeout: float) -> Verification:
    """Compare an export with its model.

    Args:
        made: The results of the export.
        samples: The example inputs of each method.
        inputs: Samples to use instead, as `example_inputs` of `recipes.export`.
        timeout: Seconds after which the program is stopped.
    """
    result = Verification()
    kind = "ExportedProgram" if any(isinstance(m, ExportedProgram) for m in made.models.values()) else "nn.Module"
    given = samples_by_method(inputs, made.models, kind) if inputs is not None else None
    chosen: dict[str, list[Sample]] = {}
    for method in made.models:
        if given is not None and method in given:
            chosen[method] = [Sample(f"input {number}", tuple(s)) for number, s in enumerate(given[method], 1)]
        elif samples.get(method):
            chosen[method] = varied(samples[method])
            if (program := made.captured.get(method)) is not None:
                chosen[method] += range_ends(method, program, samples[method][0], result)
        else:
            result.not_run.append(f"Method {method!r}: there are no example inputs; pass inputs.")
    if made.recipe.source_transform_in_place and made.quantizes:
        result.not_run.append("The comparison with the model: source_transform_in_place has changed the model.")
        expected: dict[str, list[list[Any]]] = {}
    else:
        expected = {m: run for m, s in chosen.items() if (run := _eager(m, made.models[m], s, result)) is not None}
    for method in expected:
        captured = made.captured.get(method)
        if captured is not None and any(quantized_nodes(captured.graph_module)):
            outputs = _eager(method, captured, chosen[method], result, _QUANTIZED)
            if outputs is not None:
                compare(method, _QUANTIZED, chosen[method], outputs, expected[method], result)
    if made.program is None or made.contents is None:
        result.not_run.append("The program: the recipe's stages end before it is made.")
        return result
    with tempfile.TemporaryDirectory(prefix="recipes-") as folder:
        path = Path(folder, "model.pte")
        write_atomically({path: made.program.write_to_file})
        data_files = []
        for name, data in (made.program._tensor_data or {}).items():
            data_files.append(Path(folder, f"{name}.ptd"))
            write_atomically({data_files[-1]: data.write_to_file})
        _run(path, data_files, made.contents, chosen, expected, result, timeout)
    return result


def verify_program(
    path: str | os.PathLike[str], inputs: Any = None, model: Any = None, *, timeout: float = TIMEOUT
) -> Verification:
    """Check a saved program on this host, and compare it with its model if you pass the model.

    Without the model, this checks that the file is the one that its manifest was written for, and that it loads, runs,
    and returns finite outputs of the declared shapes. The inputs are generated, for the declared shapes and both ends
    of each dynamic range: noise for floating-point inputs, zeros for integers.

    Args:
        path: The `.pte` file.
        inputs: Samples to use instead of generated ones, as `example_inputs` of `recipes.export`.
        model: The model to compare with, as `model` of `recipes.export`.
        timeout: Seconds after which the program is stopped.

    Raises:
        ArgumentError: The file is not a program, or the inputs or the model are invalid.
        SaveError: A save of the program was interrupted and cannot be completed.
    """
    program = Path(path)
    state = read_manifest(program)
    contents = contents_of_file(program)
    result = Verification()
    if state.problem:
        result.failures.append(f"{state.problem} Save the program again.")
    elif state.manifest is None:
        result.not_run.append("The comparison with a manifest: there is none beside the program.")
    else:
        result.ran.append("The file is the one that its manifest was written for.")
    models, kind = models_by_method(model) if model is not None else ({}, "")
    names = {method.name: None for method in contents.methods}
    unknown = [method for method in models if method not in names]
    if unknown:
        raise ArgumentError(f"The model has the methods {', '.join(unknown)}, but {program.name} does not.")
    given: dict[str, list[Any]] = {}
    if inputs is not None:
        called = models or {method.name: None for method in contents.methods if method.inputs}
        given = samples_by_method(inputs, called, kind or "nn.Module")
    declared = described_inputs(state) if not state.problem else {}
    chosen: dict[str, list[Sample]] = {}
    for method in contents.methods:
        if method.name in given:
            samples = [Sample(f"input {number}", tuple(s)) for number, s in enumerate(given[method.name], 1)]
        else:
            samples = made_up(method, declared.get(method.name), result)
        if samples:
            chosen[method.name] = samples
    expected = {}
    for name, own in models.items():
        if name in chosen and (run := _eager(name, own, chosen[name], result)) is not None:
            expected[name] = run
    data = [program.with_name(file["file"]) for file in (state.manifest or {}).get("data_files", ())]
    _run(program, data, contents, chosen, expected, result, timeout)
    return result


def _run(
    path: Path,
    data_files: Sequence[Path],
    contents: Contents,
    chosen: Mapping[str, Sequence[Sample]],
    expected: Mapping[str, list[list[Any]]],
    result: Verification,
    timeout: float,
) -> None:
    if not chosen:
        return
    if len(data_files) > 1:
        result.not_run.append("The program: it has several data files, but the runtime on this host accepts only one.")
        return
    calls = {method: [tree_leaves(sample.inputs) for sample in samples] for method, samples in chosen.items()}
    run = run_program(path, data_files[0] if data_files else None, contents, calls, timeout)
    methods = {method.name: method for method in contents.methods}
    for name, samples in chosen.items():
        if name not in run.methods:
            result.failures.append(f"Method {name!r} returned no result: {run.crash or 'the runtime wrote no answer'}.")
            break  # the methods after it did not run
        one = run.methods[name]
        if one.missing_backends or one.missing_kernels:
            result.not_run.append(_missing(name, run))
            continue
        if one.error:
            result.failures.append(f"Method {name!r}: {one.error}")
        outputs = one.outputs
        if outputs:
            result.ran.append(f"Method {name!r} ran on this host with {', '.join(s.label for s in samples)}.")
        _check_outputs(methods[name], samples, outputs, expected.get(name), result)
        if name in expected and outputs:
            compare(name, _PROGRAM, samples, outputs, expected[name], result)


def _missing(name: str, run: ProgramRun) -> str:
    one = run.methods[name]
    lacking = []
    if one.missing_backends:
        are = "is" if len(one.missing_backends) == 1 else "are"
        lacking.append(f"{', '.join(one.missing_backends)} {are} not in this host's runtime")
    if one.missing_kernels:
        lacking.append(f"this host's runtime has no kernels for {', '.join(one.missing_kernels)}")
    return f"Method {name!r}: {' and '.join(lacking)}; registered: {', '.join(run.registered) or 'no backends'}."


def _check_outputs(
    method: Method,
    samples: Sequence[Sample],
    outputs: Sequence[Sequence[Any]],
    expected: Sequence[Sequence[Any]] | None,
    result: Verification,
) -> None:
    """Check that outputs have the declared shapes, and are finite if the model's outputs are."""
    for number, (sample, values) in enumerate(zip(samples, outputs, strict=False)):
        for index, (value, declared) in enumerate(zip(values, method.outputs, strict=True)):
            if not isinstance(value, torch.Tensor):
                continue
            what = f"Method {method.name!r}, output {index} at {sample.label}"
            if not _fits(value, declared):
                result.failures.append(f"{what}: its shape {list(value.shape)} is not the declared {declared}.")
            wanted = expected[number][index] if expected is not None and index < len(expected[number]) else None
            meant = isinstance(wanted, torch.Tensor) and not bool(torch.isfinite(wanted).all())
            if not meant and not bool(torch.isfinite(value).all()):
                if sample.is_made_up and wanted is None:
                    result.concerns.append(f"{what}: it has values that are not finite; pass real inputs to be sure.")
                else:
                    result.failures.append(f"{what}: it has values that are not finite.")


def _fits(value: torch.Tensor, declared: Value) -> bool:
    if value.dim() != len(declared.shape):
        return False
    pairs = zip(value.shape, declared.shape, strict=True)
    return all(got <= most if declared.dynamic else got == most for got, most in pairs)


def _eager(
    method: str, model: Any, samples: Sequence[Sample], result: Verification, what: str = "model"
) -> list[list[Any]] | None:
    """Run a model in PyTorch and return the flat outputs for each sample; buffers and the random state are restored."""
    module = model.module(check_guards=False) if isinstance(model, ExportedProgram) else model
    outputs = []
    try:
        with _buffers_kept(module), torch.no_grad(), torch.random.fork_rng(devices=[]):
            for sample in samples:
                inputs = tree_map(lambda v: v.detach().clone() if isinstance(v, torch.Tensor) else v, sample.inputs)
                outputs.append([_kept(value) for value in tree_leaves(module(*inputs))])
    except Exception as error:
        label = samples[len(outputs)].label
        result.failures.append(f"Method {method!r}: the {what} does not run at {label}: {error}")
        return None
    return outputs


def _kept(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


@contextmanager
def _buffers_kept(module: torch.nn.Module) -> Iterator[None]:
    places = [
        (owner, key, buffer, buffer.detach().clone())
        for owner in module.modules()
        for key, buffer in owner._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for owner, key, buffer, before in places:
                owner._buffers[key] = buffer
                if not torch.equal(buffer, before):
                    buffer.copy_(before)
