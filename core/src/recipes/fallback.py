"""Lower a model although a backend's compiler refuses ops that its partitioner claimed.

A model whose ops all compile is lowered once, by ExecuTorch's own stage. Where that fails, each
partitioner is asked again what it claims, and its compiler is given one op of each kind in a tiny
program; halving finds the kinds that it refuses. Those are withheld from that partitioner, so that
they go to the next one or to the portable kernels. The number of compilations grows with the number
of kinds that are refused, and with the logarithm of the number of kinds there are.
"""

from __future__ import annotations

import copy
import logging
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.backend.backend_api import validation_disabled
from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.passes.dim_order_ops_registry import MemoryFormatOpsMap
from executorch.export.stages import EdgeTransformAndLowerStage, PipelineArtifact
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils._sympy.numbers import int_oo

from recipes.arguments import unbounded
from recipes.errors import ArgumentError, ExportError
from recipes.ranges import keeping_ranges, size_for_estimates
from recipes.sharing import to_lower

torch.library.define("recipes::withheld", "(Tensor[] inputs) -> Tensor")
_WITHHELD = torch.ops.recipes.withheld.default
"""Stands for a node that a partitioner must not claim, while it partitions: an op that no backend knows."""

Kind = tuple[Any, ...]
"""What decides whether a compiler takes an op: the op, its tensors' data types and shapes, its other arguments."""


@dataclass(frozen=True)
class Fallback:
    """An op that a backend claimed and could not compile.

    Args:
        method: The method that it is in.
        node: The node's name in the edge program.
        op: The operator, `aten.relu.default`; `*` where a backend compiles nothing of the model.
        source_line: Where the model's code calls it: `model.py:12 in forward`.
        backend: The backend that could not compile it.
        reason: What the backend's compiler said.
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


_UNDELEGATED = re.compile(r"EdgeOpOverload: (\S+)>.* was not decomposed or delegated", re.DOTALL)
"""What ExecuTorch says where a backend left an operator that was kept whole for it."""


_NO_BACKEND = re.compile(r"Backend \S+ was not found")
"""What ExecuTorch says where a partitioner names a backend that has no compiler: there is none to ask again."""


class _RefusalError(Exception):
    """Ends a lowering when a partitioner is found to claim ops that its compiler refuses."""


class LowerStage(EdgeTransformAndLowerStage):
    """Lower to the backends, and withhold from each what its compiler refuses.

    Args:
        partitioners: As in `executorch.export.LoweringRecipe`.
        transform_passes: Its `edge_transform_passes`.
        compile_config: Its `edge_compile_config`; it is not changed.
        strict: Whether an op that a backend claims and cannot compile is an error.
    """

    def __init__(self, partitioners: Any, transform_passes: Any, compile_config: Any, *, strict: bool) -> None:
        super().__init__(partitioners, transform_passes, compile_config)
        self._partitioners: Any
        self._compile_config: Any
        self._strict = strict
        self.fallbacks: list[Fallback] = []

    def run(self, artifact: PipelineArtifact) -> None:
        """Lower; where a compiler refuses, find out what, and lower without it.

        Raises:
            ExportError: With `strict`, or where a partitioner is told to take the whole model: names every op at once.
        """
        self.fallbacks = []
        for method, program in artifact.data.items():
            _check_bounds(method, program)
        asked, config = self._partitioners, self._compile_config
        self._compile_config = copy.deepcopy(config)  # ExecuTorch adds ops to the config that it is given
        try:
            with keeping_ranges(artifact.data.values()):
                try:
                    super().run(to_lower(artifact))
                except Exception as error:
                    if not asked or _NO_BACKEND.search(str(error)):
                        raise
                    self._lower_without_refused(to_lower(artifact, again=True), asked, config, error)
        finally:
            self._partitioners, self._compile_config = asked, config

    def _lower_without_refused(self, artifact: PipelineArtifact, asked: Any, config: Any, first: Exception) -> None:
        progress = _Progress()
        by_method = asked if isinstance(asked, Mapping) else dict.fromkeys(artifact.data, asked)
        probes = {
            method: [_Probe(p, method, artifact.data[method], config, progress) for p in partitioners]
            for method, partitioners in by_method.items()
        }
        while True:
            self._partitioners, self._compile_config = probes, copy.deepcopy(config)
            progress.current = None
            try:
                super().run(artifact)
                break
            except _RefusalError:
                continue  # with what was found withheld
            except Exception as error:
                probe = progress.current
                if probe is None or probe.withholds_all:
                    raise first from error
                # What was kept whole for a backend and not taken by it is decomposed, for whoever is next.
                whole_in_vain = _UNDELEGATED.search(str(error))
                if whole_in_vain is not None and probe.decompose(whole_in_vain[1]):
                    continue
                probe.withhold_all(first)
        found = [fallback for group in probes.values() for probe in group for fallback in probe.fallbacks()]
        whole = [probe for group in probes.values() for probe in group if probe.must_take_all]
        if found and (self._strict or whole):
            lines = "\n".join(f"  {fallback.backend} cannot take {fallback}" for fallback in found)
            raise ExportError(f"Not everything can be delegated as asked:\n{lines}", "to_edge_transform_and_lower")
        self.fallbacks = found


def _check_bounds(method: str, program: ExportedProgram) -> None:
    """Refuse an input's dynamic size without an end: memory would be planned for the example's size alone."""
    endless = {str(s) for s, limits in program.range_constraints.items() if limits.upper == int_oo}
    for name in program.graph_signature.user_inputs:
        value = next((n.meta.get("val") for n in program.graph.nodes if n.name == name), None)
        for axis, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if str(size) in endless:
                raise ArgumentError(unbounded(f"dimension {axis} of {name!r} in method {method!r}"))


class _Progress:
    """Which probe partitioned last: where lowering fails after that, its compiler is the one that failed."""

    current: _Probe | None = None


class _Probe(Partitioner):
    """A partitioner that claims only what its compiler takes.

    Args:
        inner: The partitioner that it stands for.
        method: The method that it partitions.
        program: The captured program of that method; it has the values of the weights.
        config: The edge compile config.
        progress: Shared by all probes of a lowering.
    """

    def __init__(self, inner: Partitioner, method: str, program: ExportedProgram, config: Any, progress: _Progress):
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
        """Claim nothing: what the compiler refuses is not one op."""
        self._all = error

    def decompose(self, op: str) -> bool:
        """No longer keep an operator whole, such as `aten.linear.default`; False where nothing changes by that."""
        known = op in self._decomposed
        self._decomposed.add(op)
        return not known

    def fallbacks(self) -> Iterator[Fallback]:
        """What was withheld in the last lowering."""
        backend = _backend_of(self._inner)
        if self._all is not None:
            yield Fallback(self._method, "*", "*", "", backend, _first_line(self._all))
        for node, reason in self._withheld:
            yield Fallback(self._method, node.name, _name(node), source_line(node), backend, reason)

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
        claimed = {kinds[n]: n for n in reversed(nodes) if "delegation_tag" in n.meta and not _is_quantization(n)}
        if not self._passed:
            refused = self._refused(claimed, exported_program)
            self._reasons.update(refused)
            if refused:
                raise _RefusalError
            self._passed = True
        self._withheld = [(node, self._reasons[kinds[node]]) for node in hidden]
        if self.must_take_all:
            self._withheld += [
                (node, "the backend has no such operator")
                for node in nodes
                if "delegation_tag" not in node.meta and node not in hidden
            ]
        return result

    def _refused(self, claimed: Mapping[Kind, Node], program: ExportedProgram) -> dict[Kind, str]:
        samples = {kind: self._sample(node, program) for kind, node in claimed.items()}
        runnable = [kind for kind, sample in samples.items() if _runs(sample)]
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

    def _compile(self, samples: Sequence[_Sample]) -> Exception | None:
        module = _Ops(samples)
        try:
            program = torch.export.export(module.eval(), module.inputs, strict=False)
        except Exception:
            return None  # it is not the compiler that refuses
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
        """The value of a weight, or of one that is only dequantized; None for what is computed from the inputs."""
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
        if node.op == "call_function" and _is_quantization(node):
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

    def _sample(self, node: Node, program: ExportedProgram) -> _Sample:
        """The op of a node with arguments like the node's: weights as they are, anything else made up."""

        def concrete(value: Any) -> Any:
            if not isinstance(value, Node):
                return value
            fake = value.meta.get("val")
            if not isinstance(fake, torch.Tensor):
                return _hint(fake)
            constant = self._constant(value, program)
            return _Weight(constant) if constant is not None else _made_up(fake)

        args, kwargs = tree_map(concrete, (node.args, dict(node.kwargs)), is_leaf=lambda v: isinstance(v, Node))
        kwargs.pop("dim_order", None)
        used = {user.args[1] for user in node.users if user.target is operator.getitem}
        return _Sample(overload_of(node), args, kwargs, frozenset(used))


def _release_delegates(program: ExportedProgram) -> None:
    """Take the tag from the delegates of earlier backends: some partitioners claim the attribute that holds one."""
    for node in program.graph.nodes:
        if node.target is executorch_call_delegate:
            for part in (node, *(n for n in node.all_input_nodes if n.op == "get_attr"), *node.users):
                if part.target is operator.getitem or part is node or part.op == "get_attr":
                    part.meta.pop("delegation_tag", None)


@dataclass(frozen=True)
class _Weight:
    value: torch.Tensor


@dataclass(frozen=True)
class _Sample:
    """An op and its arguments; `used` are the results that the model uses, of an op with several."""

    op: Any
    args: Any
    kwargs: Any
    used: frozenset[Any]


class _Ops(torch.nn.Module):
    """Ops side by side, each on inputs of its own."""

    def __init__(self, samples: Sequence[_Sample]) -> None:
        super().__init__()
        self.inputs: tuple[torch.Tensor, ...] = ()
        self._calls = [replace(s, args=self._bind(s.args), kwargs=self._bind(s.kwargs)) for s in samples]

    def _bind(self, arguments: Any) -> Any:
        def bind(value: Any) -> Any:
            if isinstance(value, _Weight):
                name = f"weight_{len(self._buffers)}"
                self.register_buffer(name, value.value)
                return _Reference(name)
            if isinstance(value, torch.Tensor):
                self.inputs = (*self.inputs, value)
                return _Reference(len(self.inputs) - 1)
            return value

        return tree_map(bind, arguments, is_leaf=lambda v: isinstance(v, _Weight))

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        def resolve(value: Any) -> Any:
            if not isinstance(value, _Reference):
                return value
            return inputs[value.key] if isinstance(value.key, int) else getattr(self, value.key)

        results = []
        for call in self._calls:
            made = call.op(*tree_map(resolve, call.args), **tree_map(resolve, call.kwargs))
            if call.used and isinstance(made, tuple | list):
                made = [value for index, value in enumerate(made) if index in call.used]
            results += [leaf for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]
        return results


@dataclass(frozen=True)
class _Reference:
    key: int | str


def _runs(sample: _Sample) -> bool:
    module = _Ops([sample])
    try:
        with torch.no_grad():
            module(*module.inputs)
    except Exception:
        return False  # what was made up does not suit the op; nothing can be told of it
    return True


def overload_of(node: Node) -> Callable[..., Any] | None:
    """The ATen operator of a node of an edge program, or None for what is none."""
    if node.op != "call_function":
        return None
    target = MemoryFormatOpsMap.get(node.target, node.target)
    if not isinstance(target, torch._ops.OpOverload):
        target = getattr(target, "_op", None)  # an edge operator holds the one that it stands for
    return target if isinstance(target, torch._ops.OpOverload) else None


def _is_quantization(node: Node) -> bool:
    return "quantize" in str(node.target)


def _made_up(fake: torch.Tensor) -> torch.Tensor:
    shape = [_hint(size) for size in fake.shape]
    return torch.rand(shape).to(fake.dtype) if fake.is_floating_point() else torch.zeros(shape, dtype=fake.dtype)


def _hint(value: Any) -> Any:
    """A number for a size that is only known as a symbol."""
    if isinstance(value, torch.SymInt):
        return size_for_estimates(value)
    return value.node.hint if isinstance(value, torch.SymFloat | torch.SymBool) else value


def _name(node: Node) -> str:
    return str(overload_of(node) or node.target)


def source_line(node: Node) -> str:
    """`model.py:12 in forward`, the last line of the model's own that a capture recorded; else the module's name."""
    places = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if '"' in line]
    own = [place for place in places if place.startswith("File ") and "/torch/" not in place]
    if own:
        file, line, function = (part.strip() for part in own[-1].split(",", 2))
        return f"{file.split(chr(34))[1]}:{line.removeprefix('line ')} {function}"
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    return f"module {modules[-1][0]}" if modules and modules[-1][0] else ""


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _backend_of(partitioner: Partitioner) -> str:
    spec = getattr(partitioner, "delegation_spec", None)
    return str(getattr(spec, "backend_id", "") or type(partitioner).__name__.removesuffix("Partitioner"))


@contextmanager
def _without_logging() -> Iterator[None]:
    """Keep a compiler's words about a refusal out of the log; they become the reason."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def _lenient(partitioner: Partitioner) -> Iterator[None]:
    """Let a partitioner that must take the whole model name everything that it cannot take, not only the first."""
    if not getattr(partitioner, "lower_full_graph", False):
        yield
        return
    partitioner.lower_full_graph = False
    try:
        yield
    finally:
        partitioner.lower_full_graph = True
