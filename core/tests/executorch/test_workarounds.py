"""Every work-around is still needed: what ExecuTorch, torchao or torch does without it.

Each test here shows the fault itself, with none of our code in between. One that fails means that the fault is gone:
remove the work-around that names it in `recipes.executorch.workarounds`, and then the test.
"""

from __future__ import annotations

import copy
import importlib
import logging
import types
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("executorch", reason="these are faults of ExecuTorch")

import executorch.export
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge, to_edge_transform_and_lower
from executorch.exir._warnings import ExperimentalWarning
from executorch.exir.program import ExecutorchProgramManager
from executorch.runtime import Runtime
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import ComposableQuantizer

from recipes.executorch.workarounds import WORKAROUNDS, Workaround

ROOT = Path(__file__).parents[3]
Capture = torch.export.ExportedProgram


def static_int8() -> Any:
    return XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))


def captured(model: torch.nn.Module, *inputs: Any, **keywords: Any) -> Capture:
    return torch.export.export(model.eval(), inputs, **keywords)


def graph_of(model: torch.nn.Module, *inputs: Any) -> torch.fx.GraphModule:
    return captured(model, *inputs).module(check_guards=False)


def run(program: Any, *inputs: Any) -> Any:
    loaded = Runtime.get().load_program(program.buffer)
    method = loaded.load_method("forward")
    assert method is not None
    return method.execute(list(inputs))[0].clone()


class Counter(torch.nn.Module):
    """Adds its input to a buffer that starts from ones."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.ones(4))
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.linear(x) + self.total


class Lookup(torch.nn.Module):
    """Looks up positions that are made of a mask, as BERT's relatives do."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(8, 4)

    def forward(self, mask: torch.Tensor) -> torch.Tensor:
        return self.embedding(torch.cumsum(mask, 1) * mask + 1)


class Relentless(XNNPACKQuantizer):  # type: ignore[misc]
    """Annotates whatever there is, whoever did before."""

    def annotate(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
        for node in model.graph.nodes:
            node.meta.pop("quantization_annotation", None)
        return super().annotate(model)


def test_a_fake_kernel_narrows_a_dynamic_size() -> None:
    batch = torch.export.Dim("batch", min=1, max=32)
    program = captured(torch.nn.Conv2d(3, 4, 3), torch.rand(2, 3, 8, 8), dynamic_shapes=({0: batch},))

    lowered = to_edge(program).exported_program()

    assert lowered.range_constraints != program.range_constraints


def test_a_module_of_a_capture_checks_its_guards_with_a_call_in_the_graph() -> None:
    program = captured(torch.nn.Linear(4, 4), torch.rand(2, 4), dynamic_shapes=({0: torch.export.Dim("b", max=8)},))
    # torch leaves the call out where the path of some caller has "executorch" in it, and this file's has. A thread
    # has no callers but the function in it.
    namespace: dict[str, Any] = {}
    exec(compile("def module_of(program): return program.module()", "elsewhere.py", "exec"), namespace)
    with ThreadPoolExecutor() as threads:
        graph = threads.submit(namespace["module_of"], program).result().graph

    assert any("_guards" in str(node.target) for node in graph.nodes)


def test_integers_are_observed() -> None:
    inputs = (torch.tensor([[1, 1, 1]]),)
    prepared = prepare_pt2e(graph_of(Lookup(), *inputs), static_int8())

    with pytest.raises(RuntimeError, match="'indices' to have one of the following scalar types"):
        prepared(*inputs)


def test_two_quantizers_that_know_an_operator_cannot_be_composed() -> None:
    config = get_symmetric_quantization_config(is_per_channel=False)
    both = ComposableQuantizer([static_int8(), Relentless().set_global(config)])

    with pytest.raises(RuntimeError, match="has changed annotations"):
        prepare_pt2e(graph_of(torch.nn.Linear(4, 4), torch.rand(1, 4)), both)


def test_calibration_moves_the_buffers_of_the_model() -> None:
    model = Counter().eval()
    prepared = prepare_pt2e(graph_of(model, torch.rand(4)), static_int8())

    prepared(torch.ones(4))

    assert not torch.equal(dict(prepared.named_buffers())["total"], torch.ones(4))


def test_a_quantized_graph_keeps_the_tensors_that_it_no_longer_reads() -> None:
    inputs = (torch.rand(1, 3, 8, 8),)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    prepared = prepare_pt2e(graph_of(model, *inputs), static_int8())
    prepared(*inputs)
    converted = convert_pt2e(prepared)

    read = {str(node.target) for node in converted.graph.nodes if node.op == "get_attr"}
    assert {name for name, _ in converted.named_parameters()} - read


def test_configs_share_one_pass_that_plans_memory() -> None:
    assert ExecutorchBackendConfig().memory_planning_pass is ExecutorchBackendConfig().memory_planning_pass


def test_lowering_changes_the_config_that_it_is_given() -> None:
    config = EdgeCompileConfig(_check_ir_validity=False)
    before = copy.deepcopy(vars(config))

    to_edge_transform_and_lower(
        captured(torch.nn.Linear(4, 4), torch.rand(1, 4)), partitioner=[XnnpackPartitioner()], compile_config=config
    )

    assert vars(config) != before


def test_buffers_start_from_zeros() -> None:
    model = Counter()
    program = to_edge(captured(model, torch.zeros(4))).to_executorch()

    assert not torch.allclose(run(program, torch.zeros(4)), model(torch.zeros(4)))


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (torch.nn.Conv3d(1, 1, 2), torch.rand(1, 1, 4, 4, 4)),
        (torch.nn.LogSoftmax(dim=1), torch.rand(2, 4, dtype=torch.float64)),
    ],
    ids=["convolution in three dimensions", "log_softmax in float64"],
)
def test_a_kernel_that_is_registered_cannot_do_it(model: torch.nn.Module, x: torch.Tensor) -> None:
    program = to_edge(captured(model, x)).to_executorch()

    with pytest.raises(RuntimeError):
        run(program, x)


def test_an_endless_dimension_gets_the_size_of_the_example() -> None:
    batch = torch.export.Dim("batch", min=1)
    program = captured(torch.nn.ReLU(), torch.rand(3, 4), dynamic_shapes=({0: batch},))

    (plan,) = to_edge(program).to_executorch().executorch_program.execution_plan

    assert plan.values[plan.inputs[0]].val.sizes == [3, 4]


def test_a_copy_of_a_graph_renames_what_is_called_like_a_builtin() -> None:
    class Input(torch.nn.Module):
        def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - the name is the point
            return input + 1

    module = captured(Input(), torch.rand(2)).graph_module

    names = [[node.name for node in one.graph.nodes] for one in (module, copy.deepcopy(module))]
    assert names[0] != names[1]


def test_a_decomposed_program_is_decomposed_anew() -> None:
    program = captured(torch.nn.ReLU(), torch.rand(2)).run_decompositions({})

    assert program.run_decompositions({}).graph_module is not program.graph_module


def test_making_a_recipe_warns() -> None:
    with pytest.warns(ExperimentalWarning):
        executorch.export.ExportRecipe(name="theirs")


def test_deriving_from_the_session_warns() -> None:
    with pytest.warns(DeprecationWarning, match="experimental"):
        type("Derived", (executorch.export.ExportSession,), {})


def test_a_read_only_mapping_cannot_be_copied() -> None:
    assert any(isinstance(v, types.MappingProxyType) for v in vars(XnnpackPartitioner()).values())
    with pytest.raises(TypeError):
        copy.deepcopy(types.MappingProxyType({}))


def test_the_bytes_of_data_files_have_no_public_name() -> None:
    public = {name for name in dir(ExecutorchProgramManager) if "data" in name and not name.startswith("_")}

    assert public == {"write_tensor_data_to_file"}


def test_a_save_that_fails_is_logged_and_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = executorch.export.ExportSession(
            torch.nn.ReLU(), [(torch.rand(2),)], executorch.export.ExportRecipe(name="plain")
        )
        session.export()

    with caplog.at_level(logging.ERROR):
        session.save_to_pte(str(tmp_path / "there is no such folder" / "model.pte"))

    assert not list(tmp_path.rglob("*.pte"))


@pytest.mark.parametrize("workaround", WORKAROUNDS, ids=lambda one: one.name)
def test_the_table_names_code_and_a_test_that_exist(workaround: Workaround) -> None:
    module, _, name = workaround.where.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    file, _, test = workaround.test.partition("::")
    assert f"def {test}(" in (ROOT / file).read_text()
    assert workaround.repairs.endswith(".")


def own_tests() -> Iterator[str]:
    for name, value in globals().items():
        if name.startswith("test_") and callable(value) and "table" not in name and "every_test" not in name:
            yield name


def test_every_test_here_is_of_a_workaround_in_the_table() -> None:
    named = {workaround.test.partition("::")[2] for workaround in WORKAROUNDS}

    assert sorted(own_tests()) == sorted(name for name in named if name in globals())
