"""Stages that replace ExecuTorch's stages of the same type in an `ExportSession`.

Each of them respects what the caller asked for: dynamic shapes, `strict`, calibration data, several torchao configs.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from executorch.export import QuantizationRecipe, StageType
from executorch.export.stages import ExecutorchStage, PipelineArtifact, Stage, TorchExportStage
from torch.export import ExportedProgram
from torchao.quantization import quantize_
from torchao.quantization.pt2e import (
    allow_exported_model_train_eval,
    move_exported_model_to_eval,
    move_exported_model_to_train,
)
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
from torchao.utils import unwrap_tensor_subclass

import recipes.executorch.kernels as kernels
from recipes.common import ArgumentError, RecipeConflictError, describe
from recipes.executorch.programs import copy_of
from recipes.executorch.quantizers import PrecedenceQuantizer, check_disjoint, folds_weights, mark_unbounded
from recipes.executorch.ranges import keeping_ranges
from recipes.executorch.sharing import shared_work

CalibrationInputs = Mapping[str, Callable[[], Iterable[Any]]]

_CAPTURED_BEFORE = "recipes_captured_before"
"""A key in the context of artifacts: whether the models are graphs that an earlier stage captured."""


def _capture(artifact: PipelineArtifact, method: str, strict: bool) -> ExportedProgram:
    """Capture a method, once for all exports that share their work, and return the program."""
    model = artifact.data[method]
    samples = artifact.get_context("example_inputs")
    if method not in samples:
        raise ArgumentError(f"There are no example inputs for the method {method!r}.")
    shapes = (artifact.get_context("dynamic_shapes") or {}).get(method)

    def capture() -> ExportedProgram:
        with torch.no_grad():
            return torch.export.export(model, samples[method][0], dynamic_shapes=shapes, strict=strict)

    return shared_work(artifact).once("capture", [model], (method, strict), capture)


def _one_by_one(shapes: Mapping[str, Any], artifact: PipelineArtifact) -> dict[str, Any]:
    """The shapes by method for the captured graphs of models: what a model takes as `*args`, its graph takes singly."""
    single = dict(shapes)
    for method, given in shapes.items():
        kinds = [p.kind for p in inspect.signature(artifact.data[method].forward).parameters.values()]
        if inspect.Parameter.VAR_POSITIONAL in kinds and isinstance(given, tuple):
            first = kinds.index(inspect.Parameter.VAR_POSITIONAL)
            count = len(artifact.get_context("example_inputs")[method][0]) - first
            (group,) = given[first:] or ((),)
            single[method] = (*given[:first], *([None] * count if group is None else group))
    return single


class SourceTransformStage(Stage):
    """Apply the torchao configs of a recipe to the eager model.

    Args:
        recipe: The recipe to apply. The stage does nothing if it is None or has no torchao configs.
        in_place: Whether to change the caller's model instead of a copy.
    """

    def __init__(self, recipe: QuantizationRecipe | None, *, in_place: bool) -> None:
        super().__init__()
        self._recipe = recipe
        self._in_place = in_place

    stage_type = StageType.SOURCE_TRANSFORM
    valid_predecessor_stages: list[StageType] = []  # noqa: RUF012
    can_start_pipeline = True

    def run(self, artifact: PipelineArtifact) -> None:
        """Transform the models of every method."""
        configs = self._recipe.ao_quantization_configs if self._recipe is not None else None
        if not configs:
            self._artifact = artifact
            return

        def transform() -> dict[str, torch.nn.Module]:
            models: dict[str, torch.nn.Module] = artifact.data if self._in_place else copy.deepcopy(artifact.data)
            for model in models.values():
                check_disjoint(configs, model)
                for config in configs:
                    quantize_(model, config.ao_base_config, config.filter_fn)
                unwrap_tensor_subclass(model)
            return models

        shared = shared_work(artifact)
        key = shared.quantization(self._recipe)
        transformed = shared.once("source_transform", list(artifact.data.values()), key, transform)
        self._artifact = artifact.copy_with_new_data(transformed)


class QuantizeStage(Stage):
    """Quantize every method with the recipe's PT2E quantizers, in their order of precedence.

    Args:
        recipe: The recipe to quantize with. The stage does nothing if it is None or has no quantizers.
        strict: As in `torch.export.export`.
        calibration_inputs: For each method, a function that returns its samples. By default these are the recipe's
            own samples, or the example inputs.
    """

    def __init__(
        self, recipe: QuantizationRecipe | None, *, strict: bool, calibration_inputs: CalibrationInputs | None
    ) -> None:
        super().__init__()
        self._recipe = recipe
        self._strict = strict
        self._calibration_inputs = calibration_inputs

    stage_type = StageType.QUANTIZE
    valid_predecessor_stages = [StageType.SOURCE_TRANSFORM]  # noqa: RUF012
    can_start_pipeline = True

    def run(self, artifact: PipelineArtifact) -> None:
        """Capture, prepare, calibrate or train, and convert."""
        if self._recipe is None or not self._recipe.quantizers:
            self._artifact = artifact
            return

        def quantize() -> dict[str, torch.fx.GraphModule]:
            samples = artifact.get_context("example_inputs")
            return {
                method: self._quantize(self._capture(artifact, method), method, samples[method]) for method in models
            }

        models = artifact.data
        shared = shared_work(artifact)
        key = (self._strict, shared.quantization(self._recipe))
        self._artifact = artifact.copy_with_new_data(shared.once("quantize", list(models.values()), key, quantize))
        self._artifact.add_context(_CAPTURED_BEFORE, True)
        shapes = artifact.get_context("dynamic_shapes") or {}
        self._artifact.add_context("dynamic_shapes", _one_by_one(shapes, artifact))

    def _capture(self, artifact: PipelineArtifact, method: str) -> torch.fx.GraphModule:
        assert self._recipe is not None
        model, sample = artifact.data[method], artifact.get_context("example_inputs")[method][0]
        shapes = (artifact.get_context("dynamic_shapes") or {}).get(method)
        if self._recipe.is_qat or (shapes is None and self._recipe.dynamic_batch_size):
            program = self._capture_in_its_own_way(model, sample, shapes)
        else:
            program = _capture(artifact, method, self._strict)
        # With guards, the graph would have a call that checks them, which no quantizer or backend supports.
        return program.module(check_guards=False)

    def _capture_in_its_own_way(self, model: torch.nn.Module, sample: tuple[Any, ...], shapes: Any) -> ExportedProgram:
        assert self._recipe is not None
        if shapes is None and self._recipe.dynamic_batch_size:
            batch = torch.export.Dim("batch", min=1)
            shapes = tuple({0: batch} if isinstance(value, torch.Tensor) else None for value in sample)
        modes = [(module, module.training) for module in model.modules()]
        try:
            if self._recipe.is_qat:
                model.train()
            return torch.export.export(model, sample, dynamic_shapes=shapes, strict=self._strict)
        finally:
            for module, training in modes:
                module.training = training

    def _quantize(
        self, captured: torch.fx.GraphModule, method: str, samples: list[tuple[Any, ...]]
    ) -> torch.fx.GraphModule:
        recipe = self._recipe
        assert recipe is not None
        quantizer = PrecedenceQuantizer(recipe.quantizers or ())
        folds = {folds_weights(one) for one in quantizer.quantizers}
        if len(folds) > 1:
            raise RecipeConflictError(
                f"The recipe has quantizers with fold_quantize=False next to others: {describe(recipe.quantizers)}. "
                "Conversion treats all weights alike, so use only one kind."
            )
        model = _apply(recipe.pre_prepare_passes, captured)
        if not recipe.is_qat:
            mark_unbounded(model, samples[0])
        own = {name: (buffer, buffer.detach().clone()) for name, buffer in model.named_buffers()}
        prepare = prepare_qat_pt2e if recipe.is_qat else prepare_pt2e
        model = _apply(recipe.post_prepare_passes, prepare(model, quantizer))
        if recipe.is_qat:
            if recipe.train_fn is None:
                raise ArgumentError(f"The recipe {recipe!r} has is_qat=True and needs a train_fn.")
            allow_exported_model_train_eval(model)
            move_exported_model_to_train(model)
            recipe.train_fn(model)
            move_exported_model_to_eval(model)
        else:
            self._calibrate(model, method, samples)
            _put_back(own, model)
        model = _apply(recipe.pre_convert_passes, model)
        converted = convert_pt2e(model, fold_quantize=folds.pop())
        if not recipe.is_qat:
            _put_back(own, converted)  # folding constants runs parts of the graph
        quantized = _apply(recipe.post_convert_passes, converted)
        _drop_unused_tensors(quantized)
        return quantized

    def _calibrate(self, model: torch.fx.GraphModule, method: str, samples: list[tuple[Any, ...]]) -> None:
        assert self._recipe is not None
        given = (self._calibration_inputs or {}).get(method) or self._recipe.calibration_inputs_fn
        count = 0
        with torch.no_grad():
            for sample in given() if given is not None else samples:
                inputs = (sample,) if isinstance(sample, torch.Tensor) else sample
                if not isinstance(inputs, tuple | list):
                    raise ArgumentError(
                        f"Calibration sample {count} of method {method!r} is a {type(sample).__name__}; "
                        "each must be a tuple of forward's arguments."
                    )
                try:
                    model(*inputs)
                except Exception as error:
                    if given is None:
                        raise  # the model ran on its example inputs, so they are not the cause
                    raise ArgumentError(
                        f"Calibration sample {count} of method {method!r} does not run: {error}\n"
                        "Its shapes must be those of the example inputs, or be allowed by dynamic_shapes."
                    ) from error
                count += 1
        if not count:
            raise ArgumentError(f"There is no calibration sample for method {method!r}, so no range can be measured.")


class CaptureStage(TorchExportStage):
    """Capture every method, once for all exports that share their work.

    Args:
        passes: As in `executorch.export.ExportRecipe.aten_transform_passes`.
        strict: As in `torch.export.export`; a graph that was captured before is captured again without it, since
            there is no Python left to trace.
    """

    def run(self, artifact: PipelineArtifact) -> None:
        """Capture, and apply the passes."""
        strict = self.strict and not artifact.get_context(_CAPTURED_BEFORE)
        programs = {}
        for method in artifact.data:
            program = _capture(artifact, method, strict)
            if self._aten_transform_passes:
                program = copy_of(program)  # the passes may change it in place
            for transform in self._aten_transform_passes or ():
                if not callable(transform):
                    raise ArgumentError(f"The aten_transform_passes contain {transform!r}, which is not callable.")
                program = transform(method, program)
            programs[method] = program
        self._artifact = artifact.copy_with_new_data(programs)


class ToExecutorchStage(ExecutorchStage):
    """Make the program, with the dynamic ranges that were asked for and the values that buffers start from.

    Args:
        config: As in `executorch.export.ExportRecipe.executorch_backend_config`.
    """

    def run(self, artifact: PipelineArtifact) -> None:
        """Keep initial values, plan memory and emit.

        Raises:
            MissingKernelError: An operator that no backend took has no kernel either.
        """
        for method in artifact.data.methods:
            program = artifact.data.exported_program(method)
            _keep_initial_values(program)
            kernels.check_limits(method, program)
            kernels.load_quantized_kernels(program)
        programs = {method: artifact.data.exported_program(method) for method in artifact.data.methods}
        with keeping_ranges(programs.values()):
            super().run(artifact)
        for plan in self.get_artifacts().data.executorch_program.execution_plan:
            if plan.name in programs:  # constant methods have no operators
                kernels.check_registered(plan.name, plan.operators, programs[plan.name])


def _keep_initial_values(program: ExportedProgram) -> None:
    """Make the program store the initial values of updated buffers; by default they start from zeros on a device."""
    updated = set(program.graph_signature.buffers_to_mutate.values())
    for node in program.graph.nodes:
        name = program.graph_signature.inputs_to_buffers.get(node.name) if node.op == "placeholder" else None
        if name in updated:
            start = program.state_dict.get(name, program.constants.get(name))
            if start is not None and bool(torch.count_nonzero(start)):
                node.meta["et_init_buffer"] = True


def _put_back(own: Mapping[str, tuple[torch.Tensor, torch.Tensor]], graph: torch.fx.GraphModule) -> None:
    """Restore the values of the model's own buffers: calibration may have updated them, and the file starts from them.

    Args:
        own: The buffers of the captured graph, which it shares with the caller's model, and their values.
        graph: The prepared or converted graph, which may share or copy them.
    """
    now = dict(graph.named_buffers())
    with torch.no_grad():
        for name, (buffer, value) in own.items():
            buffer.copy_(value)
            if name in now:
                now[name].copy_(value)


def _drop_unused_tensors(model: torch.fx.GraphModule) -> None:
    """Remove parameters and buffers that no graph reads; otherwise the next capture and the file would keep them."""
    parts = [(f"{name}." if name else "", part) for name, part in model.named_modules()]
    graphs = [(prefix, part.graph) for prefix, part in parts if isinstance(part, torch.fx.GraphModule)]
    read = {f"{prefix}{node.target}" for prefix, graph in graphs for node in graph.nodes if node.op == "get_attr"}
    for prefix, part in parts:
        for tensors in (part._parameters, part._buffers):
            for name in [name for name in tensors if f"{prefix}{name}" not in read]:
                delattr(part, name)


def _apply(
    passes: Iterable[Callable[[torch.fx.GraphModule], torch.fx.GraphModule]] | None, model: torch.fx.GraphModule
) -> torch.fx.GraphModule:
    for transform in passes or ():
        model = transform(model)
        if not isinstance(model, torch.fx.GraphModule):
            raise ArgumentError(f"The quantization pass {transform!r} returned {model!r}, not a GraphModule.")
    return model
