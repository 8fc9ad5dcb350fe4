"""Compare what an export made with the model that it was made from, as far as this host can run it."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from recipes.arguments import models_by_method, samples_by_method
from recipes.contents import Contents, Method, Value, contents_of_file
from recipes.errors import ArgumentError
from recipes.files import write_atomically
from recipes.manifest import described_inputs, read_manifest
from recipes.quantization import quantized_nodes
from recipes.rendering import as_text, table
from recipes.report import Artifacts
from recipes.running import ProgramRun, run_program

if TYPE_CHECKING:
    from rich.console import Group

LOW_SQNR = 10.0
"""dB; below it the error's power is more than a tenth of the output's, which no use of a model puts up with."""

TIMEOUT = 600.0
"""Seconds for running a program on this host."""

_SAMPLES = 3
"""How many samples there are at least, where nobody gave any: examples, and the examples' values in another order."""

_PROGRAM = "program on this host"
_QUANTIZED = "quantized model in PyTorch"


@dataclass(frozen=True)
class Sample:
    """One tuple of arguments of a method's forward.

    Args:
        label: What it is: `example 1`, `s0=8`.
        inputs: The arguments.
        is_made_up: Whether nobody gave values like these, so that a model need not give anything sensible for them.
    """

    label: str
    inputs: tuple[Any, ...]
    is_made_up: bool = False


@dataclass(frozen=True)
class Comparison:
    """One output of a method, compared with the model's in PyTorch over all samples.

    Args:
        method: The method.
        what: What was compared: the program on this host, or the quantized model in PyTorch.
        output: The output's position.
        samples: How many samples were compared.
        sqnr_db: The lowest ratio of signal to error power, in dB; None where no output differs at all.
        max_abs_error: The largest absolute error.
        cosine: The lowest cosine between the outputs.
        worst: The sample with the lowest ratio.
    """

    method: str
    what: str
    output: int
    samples: int
    sqnr_db: float | None
    max_abs_error: float
    cosine: float
    worst: str


@dataclass
class Verification:
    """What was compared, what was run, what was not and why, and what is wrong; print it, or take its `to_dict()`.

    Args:
        comparisons: With the model in PyTorch.
        ran: What was run on this host, in sentences.
        not_run: What was not, and why.
        concerns: What is likely not good enough.
        failures: What is wrong.
    """

    comparisons: list[Comparison] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    concerns: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with what was run; `not_run` tells what was not."""
        return not self.failures

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as JSON takes it."""
        return {"ok": self.ok, **asdict(self)}

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        parts: list[Any] = []
        if self.comparisons:
            columns = ("method", "compared", "output#", "samples#", "SQNR dB#", "max error#", "cosine#", "worst at")
            rows = [
                (
                    c.method,
                    c.what,
                    c.output,
                    c.samples,
                    "equal" if c.sqnr_db is None else f"{c.sqnr_db:.1f}",
                    f"{c.max_abs_error:.3g}",
                    f"{c.cosine:.5f}",
                    c.worst,
                )
                for c in self.comparisons
            ]
            parts.append(table("Compared with the model in PyTorch", columns, rows))
        named = {"Ran": self.ran, "Not run": self.not_run, "Concerns": self.concerns, "Failures": self.failures}
        for title, lines in named.items():
            if lines:
                parts.append(Group(Text(title, style="bold"), *(Text(f"- {line}") for line in lines)))
        return Group(*(item for part in parts for item in (part, "")))

    def __str__(self) -> str:
        return as_text(self)


def verify_session(made: Artifacts, samples: Mapping[str, list[Any]], inputs: Any, timeout: float) -> Verification:
    """Compare an export with its model.

    Args:
        made: What the export has made.
        samples: The example inputs of each method.
        inputs: Samples to use instead, as `example_inputs` of `recipes.export`.
        timeout: Seconds for running the program.
    """
    result = Verification()
    kind = "ExportedProgram" if any(isinstance(m, ExportedProgram) for m in made.models.values()) else "nn.Module"
    given = samples_by_method(inputs, made.models, kind) if inputs is not None else None
    chosen: dict[str, list[Sample]] = {}
    for method in made.models:
        if given is not None and method in given:
            chosen[method] = [Sample(f"input {number}", tuple(s)) for number, s in enumerate(given[method], 1)]
        elif samples.get(method):
            chosen[method] = _varied(samples[method])
            if (program := made.captured.get(method)) is not None:
                chosen[method] += _range_ends(method, program, samples[method][0], result)
        else:
            result.not_run.append(f"Method {method!r}: there are no example inputs; give inputs.")
    if made.recipe.source_transform_in_place and made.quantizes:
        result.not_run.append("The comparison with the model: source_transform_in_place has changed it in place.")
        expected: dict[str, list[list[Any]]] = {}
    else:
        expected = {m: run for m, s in chosen.items() if (run := _eager(m, made.models[m], s, result)) is not None}
    for method in expected:
        captured = made.captured.get(method)
        if captured is not None and any(quantized_nodes(captured.graph_module)):
            outputs = _eager(method, captured, chosen[method], result, _QUANTIZED)
            if outputs is not None:
                _compare(method, _QUANTIZED, chosen[method], outputs, expected[method], result)
    if made.program is None or made.contents is None:
        result.not_run.append("The program: the recipe's stages end before there is one.")
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
    """Check a saved program on this host, and compare it with its model where that is given.

    Without the model it is checked that the file is the one that its manifest was written for, and that it loads,
    runs, and gives finite outputs of the declared shapes, on made-up inputs of the declared shapes and both ends of
    each dynamic range: noise for floating-point inputs, zeros for integers.

    Args:
        path: The `.pte` file.
        inputs: Samples to use instead of made-up ones, as `example_inputs` of `recipes.export`.
        model: The model that it was made from, as `model` of `recipes.export`; adds the comparison.
        timeout: Seconds after which running is given up.

    Raises:
        ArgumentError: The file is not a program, or the inputs or the model are not what they must be.
        SaveError: A save of it was cut short and cannot be finished.
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
        raise ArgumentError(f"The model has the methods {', '.join(unknown)}, and {program.name} has not.")
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
            samples = _made_up(method, declared.get(method.name), result)
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
        result.not_run.append("The program: it has several data files, and the runtime here takes one.")
        return
    calls = {method: [tree_leaves(sample.inputs) for sample in samples] for method, samples in chosen.items()}
    run = run_program(path, data_files[0] if data_files else None, contents, calls, timeout)
    methods = {method.name: method for method in contents.methods}
    for name, samples in chosen.items():
        if name not in run.methods:
            result.failures.append(f"Method {name!r} gave no result: {run.crash or 'the runtime told nothing'}.")
            break  # those after it were not reached
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
            _compare(name, _PROGRAM, samples, outputs, expected[name], result)


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
    """Outputs must have the declared shapes, and be finite where the model's are."""
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
                    result.concerns.append(f"{what}: it has values that are not finite; give real inputs to be sure.")
                else:
                    result.failures.append(f"{what}: it has values that are not finite.")


def _fits(value: torch.Tensor, declared: Value) -> bool:
    if value.dim() != len(declared.shape):
        return False
    pairs = zip(value.shape, declared.shape, strict=True)
    return all(got <= most if declared.dynamic else got == most for got, most in pairs)


def _compare(
    method: str,
    what: str,
    samples: Sequence[Sample],
    outputs: Sequence[Sequence[Any]],
    expected: Sequence[Sequence[Any]],
    result: Verification,
) -> None:
    if len(outputs[0]) != len(expected[0]):
        counts = f"{len(outputs[0])} outputs, and the model gives {len(expected[0])}"
        result.failures.append(f"Method {method!r}: the {what} gives {counts}.")
        return
    for index in range(len(expected[0])):
        measured: list[tuple[float, float, float, str]] = []
        for sample, got, wanted in zip(samples, outputs, expected, strict=False):
            if not isinstance(wanted[index], torch.Tensor):
                if got[index] != wanted[index]:
                    result.failures.append(
                        f"Method {method!r}, output {index} at {sample.label}: the {what} gives {got[index]!r}, and "
                        f"the model {wanted[index]!r}."
                    )
                continue
            if got[index].shape != wanted[index].shape:
                result.failures.append(
                    f"Method {method!r}, output {index} at {sample.label}: the {what} gives the shape "
                    f"{list(got[index].shape)}, and the model {list(wanted[index].shape)}."
                )
                continue
            measured.append((*_errors(got[index], wanted[index]), sample.label))
        if not measured:
            continue
        lowest = min(measured)
        sqnr = None if math.isinf(lowest[0]) and lowest[0] > 0 else lowest[0]
        error, cosine = max(m[1] for m in measured), min(m[2] for m in measured)
        result.comparisons.append(
            Comparison(method, what, index, len(measured), sqnr, error, cosine, "" if sqnr is None else lowest[3])
        )
        if sqnr is not None and sqnr < LOW_SQNR:
            result.concerns.append(
                f"Method {method!r}, output {index}: the {what} is {sqnr:.1f} dB from the model at {lowest[3]}; "
                f"below {LOW_SQNR:g} dB little of the signal is left."
            )


def _errors(got: torch.Tensor, wanted: torch.Tensor) -> tuple[float, float, float]:
    """Signal-to-error ratio in dB (infinite where equal), largest absolute error, and cosine."""
    both = torch.isfinite(got) & torch.isfinite(wanted)
    left, right = got[both].double(), wanted[both].double()
    error = left - right
    noise, signal = float(error.square().sum()), float(right.square().sum())
    if noise == 0:
        return math.inf, 0.0, 1.0
    # A model that gives zeros has no signal; any error is infinitely worse, and JSON has no infinity.
    sqnr = 10 * math.log10(signal / noise) if signal else -999.0
    norms = float(left.norm() * right.norm())
    return sqnr, float(error.abs().max()), float(left @ right) / norms if norms else 0.0


def _eager(
    method: str, model: Any, samples: Sequence[Sample], result: Verification, what: str = "model"
) -> list[list[Any]] | None:
    """The outputs of a model in PyTorch for each sample, flat; its buffers and the random state are put back."""
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


def _varied(examples: Sequence[tuple[Any, ...]]) -> list[Sample]:
    """The examples, and the first one's values in other orders: as likely as the example, and nobody fitted them."""
    samples = [Sample(f"example {number}", tuple(sample)) for number, sample in enumerate(examples, 1)]
    generator = torch.Generator().manual_seed(0)

    def shuffled(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.numel() < 2:
            return value
        order = torch.randperm(value.numel(), generator=generator)
        return value.detach().reshape(-1)[order].reshape(value.shape)

    for number in range(1, _SAMPLES - len(samples) + 1):
        samples.append(Sample(f"shuffled {number}", tuple(tree_map(shuffled, examples[0]))))
    return samples


def _range_ends(
    method: str, program: ExportedProgram, example: tuple[Any, ...], result: Verification
) -> Iterator[Sample]:
    """The example at the lower and upper end of each dynamic size, the others as they are."""
    leaves, structure = tree_flatten(example)
    values_by_name = {node.name: node.meta.get("val") for node in program.graph.nodes}
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    inputs = [values_by_name.get(spec.arg.name) for spec in specs]
    if len(inputs) != len(leaves):
        result.not_run.append(f"Method {method!r}, ends of ranges: its inputs could not be matched with the example.")
        return
    shapes = [v.shape if isinstance(v, torch.Tensor) else () for v in inputs]
    sizes: dict[Any, int] = {}
    for shape, leaf in zip(shapes, leaves, strict=True):
        for dim, length in enumerate(shape):
            if isinstance(length, torch.SymInt) and length.node.expr.is_symbol:
                sizes[length.node.expr] = int(leaf.shape[dim])
    for symbol in sizes:
        bounds = program.range_constraints[symbol]
        for end in (bounds.lower, bounds.upper):
            if not getattr(end, "is_Integer", isinstance(end, int)):
                result.not_run.append(f"Method {method!r}: the upper end of {symbol}, which has none.")
                continue
            values = {**sizes, symbol: int(end)}
            resized = [
                _resized(leaf, [_length(length, values) for length in shape]) if shape else leaf
                for shape, leaf in zip(shapes, leaves, strict=True)
            ]
            yield Sample(f"{symbol}={int(end)}", tuple(tree_unflatten(resized, structure)))


def _length(length: Any, values: Mapping[Any, int]) -> int:
    return int(length.node.expr.subs(values)) if isinstance(length, torch.SymInt) else int(length)


def _resized(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """A tensor cut, or repeated, to a shape: its values stay likely ones, such as ids in a vocabulary."""
    for dim, length in enumerate(shape):
        if tensor.shape[dim] != length:
            index = torch.arange(length) % max(tensor.shape[dim], 1)
            tensor = tensor.detach().index_select(dim, index)
    return tensor


_PLAIN = ("int", "bool", "double", "string", "null")


def _made_up(method: Method, declared: Sequence[Mapping[str, Any]] | None, result: Verification) -> list[Sample]:
    """Inputs of the declared shapes: as captured and at both ends where a manifest tells the ranges, else the largest.

    Ends are taken of all dynamic sizes together; which of them belong together is not known here.
    """
    odd = sorted({value.kind for value in method.inputs if value.kind != "tensor" and value.kind not in _PLAIN})
    if odd:
        result.not_run.append(f"Method {method.name!r}: no {', '.join(odd)} can be made up for it; give inputs.")
        return []
    generator = torch.Generator().manual_seed(0)

    def make(shape_of: Callable[[int, Value], Sequence[int]]) -> tuple[Any, ...]:
        return tuple(
            _noise(value.dtype, shape_of(index, value), generator) if value.kind == "tensor" else value.value
            for index, value in enumerate(method.inputs)
        )

    if declared is None or len(declared) != len(method.inputs):
        return [
            Sample(f"made-up input {number}", make(lambda _, value: value.shape), True) for number in range(1, _SAMPLES)
        ]

    def at(end: str) -> Callable[[int, Value], Sequence[int]]:
        def shape(index: int, value: Value) -> Sequence[int]:
            sizes = list(declared[index]["shape"])
            for dynamic in declared[index]["dynamic"] if end else ():
                sizes[dynamic["dim"]] = value.shape[dynamic["dim"]] if dynamic[end] is None else dynamic[end]
            return sizes

        return shape

    samples = [Sample(f"made-up input {number}", make(at("")), True) for number in range(1, _SAMPLES)]
    if any(value["dynamic"] for value in declared):
        samples += [Sample(f"made-up input at the {end} of its ranges", make(at(end)), True) for end in ("min", "max")]
    return samples


def _noise(dtype: str, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    kind = getattr(torch, dtype)
    if kind.is_floating_point:
        return torch.randn(list(shape), generator=generator).to(kind)
    return torch.zeros(list(shape), dtype=kind)
