"""How a lowered program is divided among backends: operators, their work, partitions and what splits them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from executorch.exir import EdgeProgramManager
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.passes.dim_order_ops_registry import MemoryFormatOpsMap
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from recipes.executorch.ranges import size_for_estimates

KERNELS = ""
"""The backend of operators that ExecuTorch's own kernels run."""

Unit = Literal["multiply-adds", "elements"]


@dataclass(frozen=True)
class OperatorShare:
    """The calls of one operator that one backend runs.

    Args:
        name: The operator: `aten.linear`.
        backend: The backend's id in the runtime, or `KERNELS`.
        count: The number of calls.
        work: The work of these calls, in the method's unit.
        dtypes: The data types of the floating-point and complex tensors that the calls read, sorted.
    """

    name: str
    backend: str
    count: int
    work: int
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class MethodDelegation:
    """How one method is divided among backends.

    Args:
        method: The method's name.
        unit: The unit of work. `multiply-adds` are those of convolutions and matrix products, by
            `torch.utils.flop_counter`'s formulas and the example inputs' sizes. If a method has none, its work is
            counted in `elements` of its operators' results.
        operators: The operators, those with the most work first.
        partitions: The number of partitions of each backend.
        split_by: How often each operator stands between two partitions, so that they cannot be merged.
    """

    method: str
    unit: Unit
    operators: tuple[OperatorShare, ...]
    partitions: dict[str, int]
    split_by: dict[str, int]

    @property
    def work(self) -> int:
        """All of the method's work."""
        return sum(share.work for share in self.operators)

    @property
    def delegated(self) -> float:
        """The share of the work that backends run, 0 to 1; 1 if there is no work."""
        return sum(s.work for s in self.operators if s.backend != KERNELS) / self.work if self.work else 1.0

    @property
    def undelegated(self) -> list[OperatorShare]:
        """The operators that ExecuTorch's own kernels run, those with the most work first."""
        return [share for share in self.operators if share.backend == KERNELS]

    def backends(self) -> dict[str, tuple[int, float]]:
        """For each backend and for `KERNELS`, the number of operators that it runs, and its share of the work."""
        found: dict[str, tuple[int, float]] = {}
        for name in dict.fromkeys([*self.partitions, KERNELS]):
            mine = [share for share in self.operators if share.backend == name]
            work = sum(share.work for share in mine)
            found[name] = (sum(share.count for share in mine), work / self.work if self.work else 0.0)
        return found

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return {
            "method": self.method,
            "work_unit": self.unit,
            "work": self.work,
            "delegated": self.delegated,
            "backends": [
                {"backend": name, "operators": count, "share": share, "partitions": self.partitions.get(name, 0)}
                for name, (count, share) in self.backends().items()
            ],
            "operators": [
                {
                    "name": share.name,
                    "backend": share.backend,
                    "count": share.count,
                    "work": share.work,
                    "dtypes": list(share.dtypes),
                }
                for share in self.operators
            ],
            "split_by": self.split_by,
        }


def delegations(lowered: EdgeProgramManager) -> tuple[MethodDelegation, ...]:
    """How each lowered method is divided among backends, sorted by the methods' names."""
    return tuple(delegation(name, lowered.exported_program(name).graph_module) for name in sorted(lowered.methods))


def delegation(method: str, graph_module: GraphModule) -> MethodDelegation:
    """Measure how a lowered method is divided among backends.

    Args:
        method: The method's name.
        graph_module: Its lowered graph, before or after `to_executorch`.
    """
    calls = list(_calls(graph_module, KERNELS))
    multiply_adds = [_multiply_adds(node) for node, _ in calls]
    unit: Unit = "multiply-adds" if any(multiply_adds) else "elements"
    works = multiply_adds if any(multiply_adds) else [_elements(node) for node, _ in calls]
    counts: Counter[tuple[str, str]] = Counter()
    work: Counter[tuple[str, str]] = Counter()
    dtypes: dict[tuple[str, str], set[str]] = {}
    for (node, backend), amount in zip(calls, works, strict=True):
        key = (operator_name(node), backend)
        counts[key] += 1
        work[key] += amount
        dtypes.setdefault(key, set()).update(_dtypes(node))
    shares = [OperatorShare(*key, counts[key], work[key], tuple(sorted(dtypes[key]))) for key in counts]
    partitions, split_by = _partitions(graph_module)
    return MethodDelegation(
        method,
        unit,
        tuple(sorted(shares, key=lambda share: (-share.work, -share.count, share.name, share.backend))),
        partitions,
        split_by,
    )


def operator_name(node: Node) -> str:
    """The operator that a node calls, without dialect and overload: `aten.linear`."""
    packet = _packet(node)
    return str(packet) if packet is not None else getattr(node.target, "__name__", str(node.target))


def operator_counts(graph_module: GraphModule) -> Counter[str]:
    """How often a graph calls each operator outside of delegates."""
    return Counter(operator_name(node) for node in graph_module.graph.nodes if _computes(node))


def _overload(node: Node) -> Any:
    target = MemoryFormatOpsMap.get(node.target, node.target)
    # Ops of the edge dialect wrap an ATen op in `_op`; torch's own ops use that name for something else.
    return target if isinstance(target, torch._ops.OpOverload) else getattr(target, "_op", target)


def _packet(node: Node) -> Any:
    return getattr(_overload(node), "overloadpacket", None)


def _computes(node: Node) -> bool:
    """Whether a node calls an operator; nodes that handle memory, tuples or numbers do not count."""
    return node.op == "call_function" and isinstance(_overload(node), torch._ops.OpOverload)


def _lowered(node: Node) -> LoweredBackendModule | None:
    """The lowered module that a node calls, or None if it calls no delegate."""
    if node.op != "call_function" or node.target is not executorch_call_delegate:
        return None
    attribute = node.args[0]
    assert isinstance(attribute, Node)
    owner = node.graph.owning_module
    module: LoweredBackendModule = getattr(owner, str(attribute.target))
    return module


def _calls(graph_module: GraphModule, backend: str) -> Iterator[tuple[Node, str]]:
    """Every operator of a graph and of the branches and delegates in it, with the backend that runs it."""
    for node in graph_module.graph.nodes:
        lowered = _lowered(node)
        if lowered is not None:
            yield from _calls(lowered.original_module.graph_module, lowered.backend_id)
        elif node.op == "get_attr" and isinstance(branch := getattr(graph_module, str(node.target), None), GraphModule):
            yield from _calls(branch, backend)
        elif _computes(node):
            yield node, backend


def _partitions(graph_module: GraphModule) -> tuple[dict[str, int], dict[str, int]]:
    """The number of partitions of each backend, and how often each operator stands between two partitions."""
    parts: Counter[str] = Counter()
    split_by: Counter[str] = Counter()
    nodes = list(graph_module.graph.nodes)
    after: set[Node] = set()
    for node in nodes:
        lowered = _lowered(node)
        if lowered is not None:
            parts[lowered.backend_id] += 1
        if lowered is not None or any(source in after for source in node.all_input_nodes):
            after.add(node)
    before: set[Node] = set()
    for node in reversed(nodes):
        if _lowered(node) is not None or any(user in before for user in node.users):
            before.add(node)
        # Calls of delegates are in both sets; only the operators between two of them count.
        if node in after and node in before and _computes(node):
            split_by[operator_name(node)] += 1
    for node in nodes:
        if node.op == "get_attr" and isinstance(branch := getattr(graph_module, str(node.target), None), GraphModule):
            inner_parts, inner_split = _partitions(branch)
            parts.update(inner_parts)
            split_by.update(inner_split)
    return dict(sorted(parts.items())), dict(split_by.most_common())


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _value(node: Node) -> Any:
    return node.meta.get("val")


def _dtypes(node: Node) -> set[str]:
    read = _tensors([_value(source) for source in node.all_input_nodes])
    return {str(t.dtype).removeprefix("torch.") for t in read if t.is_floating_point() or t.is_complex()}


def _elements(node: Node) -> int:
    return sum(size_for_estimates(tensor.numel()) for tensor in _tensors(_value(node)))


def _multiply_adds(node: Node) -> int:
    """The multiply-adds of a convolution, a matrix product or a composite of these; 0 for other operators."""
    overload, packet = _overload(node), _packet(node)
    known = packet in flop_registry
    # linear, matmul or attention may be kept whole for a backend; torch counts the operators that they decompose into.
    # A lowered program also has out variants; their operators are decomposed already.
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "CompositeImplicitAutograd")
    if not known and (overload._schema.is_mutable or not composite):
        return 0

    def shaped(value: Any) -> Any:
        value = _value(value) if isinstance(value, Node) else value
        if isinstance(value, torch.Tensor):
            return torch.empty([size_for_estimates(size) for size in value.shape], dtype=value.dtype, device="meta")
        return size_for_estimates(value) if isinstance(value, torch.SymInt) else value

    def shapes(value: Any) -> Any:
        return tree_map(shaped, value, is_leaf=lambda leaf: isinstance(leaf, Node))

    args = shapes(node.args)
    kwargs = shapes({name: value for name, value in node.kwargs.items() if name not in ("out", "dim_order")})
    if known:
        return int(flop_registry[packet](*args, **kwargs, out_val=tree_map(shaped, _value(node)))) // 2
    if not any(tensor.is_floating_point() for tensor in _tensors((args, kwargs))):
        return 0
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        overload(*args, **kwargs)
    return int(counter.get_total_flops()) // 2


def kept_whole(
    asked: Mapping[str, Sequence[str]], captured: Counter[str], lowered: MethodDelegation
) -> list[dict[str, Any]]:
    """Find out what happened to operators that a recipe or a backend asked not to decompose.

    Args:
        asked: For each operator, the names of those that asked.
        captured: How often each operator is called before lowering.
        lowered: How the method is divided among backends.

    Returns:
        For each operator: `operator`, `asked_by`, the number of `captured` calls, and how many calls of the same
        operator are there after lowering, `delegated` and in `kernels`.
    """
    rows = []
    for name, by in asked.items():
        found = {
            delegated: sum(s.count for s in lowered.operators if s.name == name and (s.backend != KERNELS) == delegated)
            for delegated in (True, False)
        }
        rows.append(
            {
                "method": lowered.method,
                "operator": name,
                "asked_by": list(by),
                "captured": captured[name],
                "delegated": found[True],
                "kernels": found[False],
            }
        )
    return rows
