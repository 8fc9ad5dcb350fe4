"""The report of an export: what each backend runs, fallbacks with their reasons, sizes, options, findings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from executorch.exir import ExecutorchProgramManager
from torch.export import ExportedProgram

from recipes.common import ArgumentError, ExportError, Finding, as_text, size, table
from recipes.executorch import (
    Contents,
    Fallback,
    MethodDelegation,
    OperatorShare,
    contents_of,
    kept_whole,
    operator_counts,
    quantized_nodes,
)
from recipes.recipe import Explanation, ExportRecipe

if TYPE_CHECKING:
    from rich.console import Group


LOW_DELEGATION = 0.5
"""If the backends run a smaller share of the work, a warning is issued: less than half is hardly intended."""

_NAMED = 3
"""How many operators a message names; the report has all of them."""


@dataclass(frozen=True)
class Artifacts:
    """The results of an export so far.

    Args:
        recipe: The recipe in use.
        models: The user's model, for each method.
        captured: The captured program of each method, before lowering.
        lowered: How each method is divided among backends; None if the recipe's stages end before lowering.
        program: The program to save; None if the stages end before it.
        quantizes: Whether a stage that quantizes was run.
        fallbacks: As in `ExportSession.fallbacks`.
        findings: As in `ExportSession.findings`.
        seconds: How long each stage took.
    """

    recipe: ExportRecipe
    models: Mapping[str, Any]
    captured: Mapping[str, ExportedProgram]
    lowered: tuple[MethodDelegation, ...] | None
    program: ExecutorchProgramManager | None
    quantizes: bool
    fallbacks: Sequence[Fallback]
    findings: Sequence[Finding]
    seconds: Mapping[str, float]

    @property
    def methods(self) -> tuple[MethodDelegation, ...]:
        """How each method is divided among backends; empty if nothing was lowered."""
        return self.lowered or ()

    @cached_property
    def contents(self) -> Contents | None:
        """What is inside the program to save."""
        return contents_of(self.program.write_to_file) if self.program is not None else None

    @cached_property
    def data_files(self) -> dict[str, int]:
        """Bytes of each `.ptd` file beside the program."""
        # ExecuTorch's public API can only write the data files in place.
        data = (self.program._tensor_data or {}) if self.program is not None else {}
        return {f"{name}.ptd": len(content) for name, content in data.items()}


@dataclass(frozen=True)
class Report:
    """The report of an export; print it, pass it to a rich console, or use its `to_dict()`.

    Args:
        recipe: The recipe's name.
        methods: How each method is divided among backends.
        quantized: For each method, how many operators work on quantized tensors.
        fallbacks: The operators that a backend claimed and could not compile.
        kept_whole: What happened to operators that were to be kept whole: see `recipes.executorch.kept_whole`.
        explanation: Where each part and option of the recipe comes from, and what a target decided.
        contents: What is inside the program; None if there is none.
        data_files: Bytes of each `.ptd` file beside the program.
        seconds: How long each stage took.
        findings: The findings from before the export, and from after it.
    """

    recipe: str
    methods: tuple[MethodDelegation, ...]
    quantized: dict[str, int]
    fallbacks: tuple[Fallback, ...]
    kept_whole: tuple[dict[str, Any], ...]
    explanation: Explanation
    contents: Contents | None
    data_files: dict[str, int]
    seconds: dict[str, float]
    findings: tuple[Finding, ...]

    def options(self) -> list[dict[str, Any]]:
        """The effective options: `recipe`, `option`, `value` and `source` of each."""
        rows: list[dict[str, Any]] = []
        for origin in self.explanation.provenance.origins:
            for source in origin.sources:
                for name, option in source.to_dict()["options"].items():
                    row = {"recipe": source.label, "option": name, **option}
                    rows += [row] if row not in rows else []
        return rows

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        contents = self.contents
        return {
            "recipe": self.recipe,
            "methods": [{**m.to_dict(), "quantized": self.quantized.get(m.method, 0)} for m in self.methods],
            "fallbacks": [asdict(fallback) for fallback in self.fallbacks],
            "kept_whole": list(self.kept_whole),
            "options": self.options(),
            "decisions": [decision.to_dict() for decision in self.explanation.provenance.decisions],
            "bytes": None if contents is None else contents.size,
            "sizes": {} if contents is None else contents.sizes,
            "data_files": self.data_files,
            "memory": {} if contents is None else {method.name: list(method.memory) for method in contents.methods},
            "seconds": self.seconds,
            "findings": [finding.to_dict() for finding in self.findings],
        }

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        parts: list[Any] = [Text(f"Export with the recipe {self.recipe or '(unnamed)'}", style="bold")]
        for method in self.methods:
            parts += self._method(method)
        if self.fallbacks:
            rows = [(f"{f.method}: {f.node}", f.op, f.backend, f.source_line, f.reason) for f in self.fallbacks]
            parts.append(table("Fell back", ("node", "operator", "refused by", "called at", "because"), rows))
        if self.kept_whole:
            columns = ("operator", "method", "asked by", "calls#", "in delegates#", "in kernels#", "gone#")
            parts.append(table("Asked to be kept whole", columns, [_kept(row) for row in self.kept_whole]))
        if options := self.options():
            rows4 = [(row["recipe"], row["option"], row["value"], row["source"]) for row in options]
            parts.append(table("Options", ("recipe", "option", "value", "from"), rows4))
        if decisions := self.explanation.provenance.decisions:
            kept = [(d.field, f"{d.value} ({d.winner})", d.reason) for d in decisions]
            parts.append(table("Decided in this target", ("field", "kept", "why"), kept))
        if self.contents is not None:
            rows2 = [*self.contents.sizes.items(), *((name, count) for name, count in self.data_files.items())]
            total = f"Size: {size(self.contents.size)}"
            parts.append(table(total, ("part", "bytes#"), [(part, f"{count:,}") for part, count in rows2]))
            arenas = [(m.name, number, f"{count:,}") for m in self.contents.methods for number, count in _arenas(m)]
            if arenas:
                parts.append(table("Planned memory", ("method", "arena#", "bytes#"), arenas))
        if self.seconds:
            stages = [(stage.replace("_", " "), f"{seconds:.2f}") for stage, seconds in self.seconds.items()]
            parts.append(table("Time", ("stage", "seconds#"), stages))
        if self.findings:
            parts.append(Group(Text("Findings", style="bold"), *(Text(str(finding)) for finding in self.findings)))
        return Group(*(item for part in parts for item in (part, "")))

    def _method(self, method: MethodDelegation) -> Iterator[Any]:
        from rich.text import Text

        backends = [
            (name or "kernels", count, f"{share:.1%}", method.partitions.get(name, ""))
            for name, (count, share) in method.backends().items()
        ]
        title = f"Method {method.method}: {method.delegated:.1%} of {method.work:,} {method.unit} delegated"
        yield table(title, ("runs on", "operators#", "work#", "partitions#"), backends)
        quantized = self.quantized.get(method.method, 0)
        if quantized:
            yield Text(f"Operators on quantized tensors: {quantized}")
        if method.split_by:
            yield Text(f"Split by: {_counted(method.split_by)}")
        if method.undelegated:
            yield Text(f"In kernels: {_counted({share.name: share.count for share in method.undelegated})}")

    def __str__(self) -> str:
        return as_text(self)


def _arenas(method: Any) -> Iterator[tuple[int, int]]:
    return ((number, count) for number, count in enumerate(method.memory, 1))


def _kept(row: Mapping[str, Any]) -> tuple[object, ...]:
    gone = max(row["captured"] - row["delegated"] - row["kernels"], 0)
    by = ", ".join(row["asked_by"])
    return (row["operator"], row["method"], by, row["captured"], row["delegated"], row["kernels"], gone)


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in counts.items())


def make_report(made: Artifacts) -> Report:
    """Make a report.

    Args:
        made: The results of the export.
    """
    return Report(
        recipe=made.recipe.name or "",
        methods=made.methods,
        quantized={name: _quantized_operators(program) for name, program in made.captured.items()},
        fallbacks=tuple(made.fallbacks),
        kept_whole=tuple(row for method in made.methods for row in _kept_whole(made, method)),
        explanation=made.recipe.explain(),
        contents=made.contents,
        data_files=made.data_files,
        seconds=dict(made.seconds),
        findings=tuple(made.findings),
    )


def _quantized_operators(program: ExportedProgram) -> int:
    """How many operators read a tensor that was just dequantized: a backend runs them on integers."""
    users = {user for node in quantized_nodes(program.graph_module) for user in node.users}
    return sum(user.op == "call_function" and "quantize" not in str(user.target) for user in users)


def _kept_whole(made: Artifacts, method: MethodDelegation) -> list[dict[str, Any]]:
    lowering = made.recipe.lowering_recipe
    program = made.captured.get(method.method)
    if lowering is None or program is None:
        return []
    counts = operator_counts(program.graph_module)
    asked: dict[str, list[str]] = {}
    for op in (lowering.edge_compile_config.preserve_ops if lowering.edge_compile_config else None) or ():
        asked.setdefault(_packet_name(op), []).append("preserve_ops")
    for partitioner in _partitioners(made.recipe, method.method):
        for op in partitioner.ops_to_not_decompose(program)[0]:
            name = _packet_name(op)
            if counts[name]:  # a backend lists all operators that it supports
                by = asked.setdefault(name, [])
                by += [label] if (label := type(partitioner).__name__) not in by else []
    return kept_whole(asked, counts, method)


def _packet_name(op: Any) -> str:
    return str(getattr(op, "overloadpacket", op))


def _partitioners(recipe: ExportRecipe, method: str) -> Sequence[Any]:
    partitioners = recipe.lowering_recipe.partitioners if recipe.lowering_recipe else None
    chosen = partitioners.get(method) if isinstance(partitioners, Mapping) else partitioners
    return chosen or ()


def outcome(made: Artifacts) -> list[Finding]:
    """The findings of a finished export: too little was delegated, or nothing was quantized.

    Args:
        made: The results of the export.
    """
    findings = []
    for method in made.methods:
        partitioners = _partitioners(made.recipe, method.method)
        if partitioners and method.work and method.delegated < LOW_DELEGATION:
            share = f"only {method.delegated:.1%}" if method.partitions else "nothing"
            findings.append(
                Finding(
                    "warning",
                    "low-delegation" if method.partitions else "no-delegation",
                    f"method {method.method!r}",
                    f"{share} of its work ({method.unit}) is delegated; ExecuTorch's kernels run {_biggest(method)}.",
                    _why(made, method),
                )
            )
    if made.quantizes:
        findings += [
            _not_quantized(made, method)
            for method, program in made.captured.items()
            if not any(quantized_nodes(program.graph_module))
        ]
    return findings


def check_share(share: float | None) -> float | None:
    """Check a `require_delegation` argument, and return it as a float.

    Raises:
        ArgumentError: It is not a number from 0 to 1.
    """
    if share is None:
        return None
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        hint = " 90 % is 0.9." if isinstance(share, int | float) and 1 < share <= 100 else ""
        raise ArgumentError(
            f"require_delegation is {share!r}; it must be the share of work to delegate, a number from 0 to 1.{hint}"
        )
    return float(share)


def require(made: Artifacts, share: float) -> None:
    """Raise an error if less than a share of the work is delegated.

    Args:
        made: The results of the export.
        share: The share of each method's work, 0 to 1.

    Raises:
        ExportError: Nothing was lowered, or less is delegated. The message names each method with less, its share, and
            its biggest operators that are not delegated.
    """
    if made.lowered is None:
        raise ExportError(
            f"require_delegation={share:g} cannot be checked: the stages of the recipe {made.recipe.name!r} end before "
            "anything is delegated. Leave it out."
        )
    low = [method for method in made.methods if method.delegated < share]
    if low:
        lines = [
            f"  method {method.method!r}: {method.delegated:.1%} of its work ({method.unit}); ExecuTorch's kernels run "
            f"{_biggest(method)}. {_why(made, method)}".rstrip()
            for method in low
        ]
        raise ExportError(
            f"Less is delegated than require_delegation={share:g} requires:\n" + "\n".join(lines),
            "to_edge_transform_and_lower",
        )


def _biggest(method: MethodDelegation) -> str:
    def describe(op: OperatorShare) -> str:
        part = f"{op.work / method.work:.1%}" if method.work else ""
        dtypes = f", {'/'.join(op.dtypes)}" if op.dtypes else ""
        return f"{op.name} ({op.count} calls, {part}{dtypes})"

    candidates = [share for share in method.undelegated if share.work] or method.undelegated
    named = candidates[:_NAMED]
    more = len(candidates) - len(named)
    return ", ".join(describe(op) for op in named) + (f" and {more} more" if more > 0 else "")


def _why(made: Artifacts, method: MethodDelegation) -> str:
    """Why operators were not delegated, and what to do about it, if that is known."""
    refused = [fallback for fallback in made.fallbacks if fallback.method == method.method]
    if refused:
        return f"{refused[0].backend} refused {refused[0].op}: {refused[0].reason}"
    working = [share for share in method.undelegated if share.work]
    odd = sorted({d for share in working for d in share.dtypes} - {"float32", "float16"})
    if odd:
        advice = " Convert the model with model.float()." if any(d.startswith(("float", "bfloat")) for d in odd) else ""
        return f"Their data types include {', '.join(odd)}, which few backends support.{advice}"
    return "session.report() shows every operator."


def _not_quantized(made: Artifacts, method: str) -> Finding:
    quantization = made.recipe.quantization_recipe
    sought = [_sought(quantizer) for quantizer in (quantization.quantizers if quantization else None) or ()]
    for config in (quantization.ao_quantization_configs if quantization else None) or ():
        chosen = getattr(config.filter_fn, "__qualname__", config.filter_fn) or "its default filter"
        sought.append(f"{type(config.ao_base_config).__name__} on the layers that {chosen} chooses")
    model = made.models.get(method)
    layers: Counter[str] = Counter()
    if isinstance(model, torch.nn.Module):
        layers.update(type(module).__name__ for module in model.modules() if not list(module.children()))
    return Finding(
        "warning",
        "not-quantized",
        f"method {method!r}",
        f"the recipe {made.recipe.name!r} quantizes, but it quantized no layer. It looked for {'; '.join(sought)}; "
        f"the model has {_counted(dict(layers.most_common())) or 'no layers'}.",
        "Use a recipe without quantization, or one that supports these layers.",
    )


def _sought(quantizer: Any) -> str:
    """What a quantizer looks for, if it lists its patterns: `AcmeQuantizer: conv, linear`."""
    patterns = [str(getattr(pattern, "name", "")) for pattern in getattr(quantizer, "SUPPORTED_PATTERNS", ())]
    names = dict.fromkeys(re.sub(r"(_bn)?(_relu)?$", "", name) for name in patterns if name)
    name = type(quantizer).__name__
    return f"{name}: {', '.join(names)}" if names else f"the layers that {name} supports"
