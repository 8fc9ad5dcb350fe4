"""Copies of captured programs that lowering may change, and that are decomposed no more than necessary."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from executorch.export.stages import PipelineArtifact
from torch.export import ExportedProgram

from recipes.executorch.sharing import CONTEXT_KEY, Decompositions, SharedWork

Program = TypeVar("Program", bound=ExportedProgram)


def copy_of(program: ExportedProgram, kind: type[Program] = ExportedProgram) -> Program:  # type: ignore[assignment]
    """A copy of a program that shares its weights and nothing else.

    Args:
        program: The program to copy.
        kind: The class of the copy.
    """
    weights = [*program.state_dict.values(), *program.constants.values()]
    graph_module = copy.deepcopy(program.graph_module, {id(weight): weight for weight in weights})
    for (_, theirs), (_, ours) in zip(_graphs(program.graph_module), _graphs(graph_module), strict=True):
        for node, copied in zip(theirs.nodes, ours.nodes, strict=True):
            copied.name = node.name  # a copy renames nodes that have the name of a Python builtin, such as `input`
    return kind(
        root=graph_module,
        graph=graph_module.graph,
        graph_signature=copy.deepcopy(program.graph_signature),
        state_dict=dict(program.state_dict),
        range_constraints=dict(program.range_constraints),
        module_call_graph=copy.deepcopy(program.module_call_graph),
        example_inputs=program.example_inputs,
        constants=dict(program.constants),
        verifiers=list(program.verifiers),
    )


def to_lower(artifact: PipelineArtifact, *, again: bool = False) -> PipelineArtifact:
    """Copy captured programs, because lowering changes them.

    Args:
        artifact: The captured programs, by method.
        again: Whether they may be lowered several times.
    """
    work = artifact.get_context(CONTEXT_KEY) or (SharedWork() if again else None)
    copies = {
        method: RememberingProgram.of(program, work.decompositions(program) if work is not None else None)
        for method, program in artifact.data.items()
    }
    return artifact.copy_with_new_data(copies)


class RememberingProgram(ExportedProgram):
    """A captured program that is decomposed no more than necessary, and once for all exports that need the same.

    Lowering decomposes a program once, then again for each partitioner. It repeats all of this for each target, and
    whenever a compiler refuses an op. It changes the decomposed program in place, so remembered programs are copied;
    the copies share the weights. The captured program itself is never changed.
    """

    _memory: Decompositions | None
    _is_decomposed: bool

    @classmethod
    def of(cls, program: ExportedProgram, memory: Decompositions | None) -> RememberingProgram:
        """A copy of a captured program.

        Args:
            program: The program to copy.
            memory: The dict that keeps the decompositions of that program and of its copies; None to keep none.
        """
        return copy_of(program, cls)._with(memory, is_decomposed=False)

    def _with(self, memory: Decompositions | None, *, is_decomposed: bool) -> RememberingProgram:
        self._memory = memory
        self._is_decomposed = is_decomposed
        return self

    def run_decompositions(
        self, decomp_table: dict[Any, Callable[..., Any]] | None = None, decompose_custom_triton_ops: bool = False
    ) -> ExportedProgram:
        """As in `ExportedProgram`, but only once, and not at all if the table has nothing for a decomposed program."""
        if decomp_table is None or decompose_custom_triton_ops:
            whole: ExportedProgram = super().run_decompositions(decomp_table, decompose_custom_triton_ops)
            return whole
        table = dict(decomp_table)
        if self._is_decomposed and not _operators(self.graph_module) & table.keys():
            return self
        if self._memory is None:
            made = RememberingProgram.__new__(RememberingProgram)
            made.__dict__.update(super().run_decompositions(table).__dict__)
            return made._with(None, is_decomposed=True)
        key = (_fingerprint(self.graph_module), frozenset((op, _meaning(function)) for op, function in table.items()))
        if key not in self._memory:
            self._memory[key] = super().run_decompositions(table)
        return copy_of(self._memory[key], RememberingProgram)._with(self._memory, is_decomposed=True)


def _meaning(function: Any) -> Hashable:
    """A key that is equal for decompositions that do the same; torch makes new functions for each table."""
    if isinstance(function, functools.partial):
        return (_meaning(function.func), function.args, frozenset(function.keywords.items()))
    if isinstance(function, types.FunctionType) and not function.__closure__:
        return (function.__code__, function.__defaults__)
    return function  # type: ignore[no-any-return]


def _graphs(module: torch.fx.GraphModule) -> list[tuple[str, torch.fx.Graph]]:
    """The graph of a module, and those of the branches and bodies inside it."""
    return [(name, part.graph) for name, part in module.named_modules() if isinstance(part, torch.fx.GraphModule)]


def _operators(module: torch.fx.GraphModule) -> set[Any]:
    return {node.target for _, graph in _graphs(module) for node in graph.nodes if node.op == "call_function"}


def _fingerprint(module: torch.fx.GraphModule) -> Hashable:
    """A key that distinguishes the graphs that one captured program can become: every node with its arguments."""
    return tuple(
        (name, tuple((n.name, n.op, n.target, str(n.args), str(n.kwargs)) for n in graph.nodes))
        for name, graph in _graphs(module)
    )
