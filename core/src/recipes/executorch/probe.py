"""A partitioner that claims only the ops that its compiler accepts."""

from __future__ import annotations

import copy
import logging
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.backend.backend_api import validation_disabled
from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from executorch.exir.delegate import executorch_call_delegate
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils._pytree import tree_leaves, tree_map

from recipes.executorch.nodes import is_quantization, name_of, overload_of, source_line
from recipes.executorch.samples import Operators, Sample, Weight, hint_of, made_up, runs

torch.library.define("recipes::withheld", "(Tensor[] inputs) -> Tensor")
_WITHHELD = torch.ops.recipes.withheld.default
"""An op that no backend supports; it replaces nodes that a partitioner must not claim, while it partitions."""

Kind = tuple[Any, ...]
"""Decides whether a compiler accepts an op: the op, its tensors' data types and shapes, its other arguments."""


@dataclass(frozen=True)
class Fallback:
    """An op that a backend claimed and could not compile.

    Args:
        method: The method that it is in.
        node: The node's name in the edge program.
        op: The operator, `aten.relu.default`; `*` if a backend compiles nothing of the model.
        source_line: Where the model's code calls it: `model.py:12 in forward`.
        backend: The backend that could not compile it.
        reason: The error message of the backend's compiler.
    """

    method: str
    node: str
    op: str
    source_line: str
    backend: str
    reason: str

    def __str__(self) -> str:
        place = f" ({self.source_line})" if self.source_line else ""
        return f"{self.op}{place} [{self.node} in {self.method}]: {self.reason}"


class RefusalError(Exception):
    """Ends a lowering because a partitioner claims ops that its compiler refuses."""


class Attempt:
    """The probe that partitioned last: if lowering fails after that, its compiler is the one that failed."""

    current: Probe | None = None


class Probe(Partitioner):
    """A partitioner that claims only the ops that its compiler accepts.

    Args:
        inner: The partitioner that it wraps.
        method: The method that it partitions.
        program: The captured program of that method, which has the values of the weights.
        config: The edge compile config.
        progress: Shared by all probes of a lowering.
    """

    def __init__(self, inner: Partitioner, method: str, program: ExportedProgram, config: Any, progress: Attempt):
        self._inner = inner
        self._method = method
        self._program = program
        self._config = config
        self._progress = progress
        self._reasons: dict[Kind, str] = {}
        self._withheld: list[tuple[Node, str]] = []
        self._passed = False
        self._all: Exception | None = None
        self._decomposed: set[str] = set()
        self.must_take_all = bool(getattr(inner, "lower_full_graph", False))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)

    @property
    def withholds_all(self) -> bool:
        """Whether nothing is left to withhold."""
        return self._all is not None

    def withhold_all(self, error: Exception) -> None:
        """Claim nothing, because the compiler refuses the model although it accepts each op."""
        self._all = error

    def decompose(self, op: str) -> bool:
        """No longer keep an operator whole, such as `aten.linear.default`; return False if that was so before."""
        known = op in self._decomposed
        self._decomposed.add(op)
        return not known

    def fallbacks(self) -> Iterator[Fallback]:
        """The ops that were withheld in the last lowering."""
        backend = _backend_of(self._inner)
        if self._all is not None:
            yield Fallback(self._method, "*", "*", "", backend, _first_line(self._all))
        for node, reason in self._withheld:
            yield Fallback(self._method, node.name, name_of(node), source_line(node), backend, reason)

    def transform_for_pre_decomposition(self, exported_program: ExportedProgram) -> ExportedProgram:
        return self._inner.transform_for_pre_decomposition(exported_program)  # type: ignore[no-any-return]

    def ops_to_not_decompose(self, ep: ExportedProgram) -> Any:
        refused = {kind[0] for kind in self._reasons} | self._decomposed
        with _lenient(self._inner):
            ops, check = self._inner.ops_to_not_decompose(ep)
        return ([] if self.withholds_all else [op for op in ops if str(op) not in refused]), check

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        self._progress.current = self
        if self.withholds_all:
            return PartitionResult(tagged_exported_program=exported_program, partition_tags={})
        nodes = [node for node in exported_program.graph.nodes if overload_of(node) is not None]
        kinds = {node: self._kind(node, exported_program) for node in nodes}
        hidden = [node for node in nodes if kinds[node] in self._reasons]
        targets = [node.target for node in hidden]
        try:
            for node in hidden:
                node.target = _WITHHELD
            with _lenient(self._inner):
                result = self._inner.partition(exported_program)
        finally:
            for node, target in zip(hidden, targets, strict=True):
                node.target = target
        _release_delegates(exported_program)
        claimed = {kinds[n]: n for n in reversed(nodes) if "delegation_tag" in n.meta and not is_quantization(n)}
        if not self._passed:
            refused = self._refused(claimed, exported_program)
            self._reasons.update(refused)
            if refused:
                raise RefusalError
            self._passed = True
        self._withheld = [(node, self._reasons[kinds[node]]) for node in hidden]
        if self.must_take_all:
            self._withheld += [
                (node, "the backend does not support this operator")
                for node in nodes
                if "delegation_tag" not in node.meta and node not in hidden
            ]
        return result

    def _refused(self, claimed: Mapping[Kind, Node], program: ExportedProgram) -> dict[Kind, str]:
        samples = {kind: self._sample(node, program) for kind, node in claimed.items()}
        runnable = [kind for kind, sample in samples.items() if runs(sample)]
        reasons: dict[Kind, str] = {}

        def search(kinds: Sequence[Kind]) -> None:
            error = self._compile([samples[kind] for kind in kinds]) if kinds else None
            if error is None:
                return
            if len(kinds) == 1:
                reasons[kinds[0]] = _first_line(error)
                return
            middle = len(kinds) // 2
            search(kinds[:middle])
            search(kinds[middle:])

        search(runnable)
        return reasons

    def _compile(self, samples: Sequence[Sample]) -> Exception | None:
        module = Operators(samples)
        try:
            program = torch.export.export(module.eval(), module.inputs, strict=False)
        except Exception:
            return None  # the compiler is not the cause
        try:
            with validation_disabled(), _lenient(self._inner), _without_logging():
                to_edge_transform_and_lower(
                    program, partitioner=[self._inner], compile_config=copy.deepcopy(self._config)
                )
        except Exception as error:
            return error
        return None

    def _kind(self, node: Node, program: ExportedProgram) -> Kind:
        def describe(value: Any) -> Any:
            if not isinstance(value, Node):
                return repr(value)
            fake = value.meta.get("val")
            if not isinstance(fake, torch.Tensor):
                return repr(fake)
            constant = self._constant(value, program)
            uniform = constant is not None and constant.numel() > 0 and bool((constant == constant.flatten()[0]).all())
            return (fake.dtype, tuple(map(str, fake.shape)), constant is not None, uniform)

        leaves = tree_leaves(((node.args, node.kwargs),), is_leaf=lambda v: isinstance(v, Node))
        return (str(overload_of(node)), *(describe(leaf) for leaf in leaves))

    def _constant(self, node: Node, program: ExportedProgram) -> torch.Tensor | None:
        """The value of a weight, or of a weight that is dequantized; None for nodes that depend on the inputs."""
        if node.op == "placeholder":
            signature = program.graph_signature
            name = (
                signature.inputs_to_parameters.get(node.name)
                or signature.inputs_to_buffers.get(node.name)
                or signature.inputs_to_lifted_tensor_constants.get(node.name)
            )
            known = {**self._program.constants, **self._program.state_dict}
            value = known.get(name) if name is not None else None
            return value.detach() if isinstance(value, torch.Tensor) else None
        if node.op == "call_function" and is_quantization(node):
            inputs = {n: self._constant(n, program) for n in node.all_input_nodes}
            overload = overload_of(node)
            if overload is not None and all(value is not None for value in inputs.values()):
                args, kwargs = tree_map(
                    lambda v: inputs[v] if isinstance(v, Node) else v,
                    (node.args, dict(node.kwargs)),
                    is_leaf=lambda v: isinstance(v, Node),
                )
                return overload(*args, **kwargs)  # type: ignore[no-any-return]
        return None

    def _sample(self, node: Node, program: ExportedProgram) -> Sample:
        """The op of a node with arguments like the node's: the same weights, and generated values for other tensors."""

        def concrete(value: Any) -> Any:
            if not isinstance(value, Node):
                return value
            fake = value.meta.get("val")
            if not isinstance(fake, torch.Tensor):
                return hint_of(fake)
            constant = self._constant(value, program)
            return Weight(constant) if constant is not None else made_up(fake)

        args, kwargs = tree_map(concrete, (node.args, dict(node.kwargs)), is_leaf=lambda v: isinstance(v, Node))
        kwargs.pop("dim_order", None)
        used = {user.args[1] for user in node.users if user.target is operator.getitem}
        return Sample(overload_of(node), args, kwargs, frozenset(used))


def _release_delegates(program: ExportedProgram) -> None:
    """Remove the tag from delegates of earlier backends: some partitioners claim the attribute that holds it."""
    for node in program.graph.nodes:
        if node.target is executorch_call_delegate:
            for part in (node, *(n for n in node.all_input_nodes if n.op == "get_attr"), *node.users):
                if part.target is operator.getitem or part is node or part.op == "get_attr":
                    part.meta.pop("delegation_tag", None)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _backend_of(partitioner: Partitioner) -> str:
    spec = getattr(partitioner, "delegation_spec", None)
    return str(getattr(spec, "backend_id", "") or type(partitioner).__name__.removesuffix("Partitioner"))


@contextmanager
def _without_logging() -> Iterator[None]:
    """Keep a compiler's messages about a refusal out of the log; the error becomes the reason."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def _lenient(partitioner: Partitioner) -> Iterator[None]:
    """Let a partitioner that must take the whole model report all ops that it cannot take, not only the first."""
    if not getattr(partitioner, "lower_full_graph", False):
        yield
        return
    partitioner.lower_full_graph = False
    try:
        yield
    finally:
        partitioner.lower_full_graph = True
