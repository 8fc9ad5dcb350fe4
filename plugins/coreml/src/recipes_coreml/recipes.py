"""The factories of the Core ML recipes. Imports torch and coremltools: only `build_recipe` imports this module."""

from __future__ import annotations

import difflib
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import coremltools as ct
import torch
from executorch.backends.apple.coreml.compiler import CoreMLBackend
from executorch.backends.apple.coreml.partition import CoreMLPartitioner
from executorch.exir import EdgeCompileConfig
from executorch.export import AOQuantizationConfig, ExportRecipe, LoweringRecipe, QuantizationRecipe
from torchao.prototype.quantization.codebook_coreml import CodebookWeightOnlyConfig
from torchao.quantization import IntxWeightOnlyConfig, PerAxis, PerGroup
from torchao.quantization.quant_api import _is_linear  # quantize_'s own default; it has no public name

from recipes import OptionError, RecipesWarning
from recipes_coreml.recipe_types import CoreMLRecipeType as Type

ModuleFilter = Callable[[torch.nn.Module, str], bool]
Shape = tuple[int, ...]


def build(recipe_type: Type, options: Mapping[str, Any]) -> ExportRecipe:
    """Make a fresh recipe.

    Args:
        recipe_type: The recipe type.
        options: The effective value of every option that the recipe type declares.

    Raises:
        OptionError: An operator to skip does not exist.
    """
    return ExportRecipe(
        name=recipe_type.value,
        quantization_recipe=_quantization(recipe_type, options),
        lowering_recipe=_lowering(recipe_type, options),
    )


def _lowering(recipe_type: Type, options: Mapping[str, Any]) -> LoweringRecipe:
    skipped = options["skip_ops_for_coreml_delegation"]
    _check_operators(recipe_type, skipped)
    target = options["minimum_deployment_target"]
    partitioner = CoreMLPartitioner(
        compile_specs=CoreMLBackend.generate_compile_specs(
            compute_precision=ct.precision.FLOAT32 if recipe_type is Type.FP32 else ct.precision.FLOAT16,
            compute_unit=ct.ComputeUnit[options["compute_unit"]],
            minimum_deployment_target=None if target is None else ct.target[target],
        ),
        skip_ops_for_coreml_delegation=list(skipped),
        lower_full_graph=options["lower_full_graph"],
        take_over_constant_data=options["take_over_constant_data"],
        take_over_mutable_buffer=options["take_over_mutable_buffer"],
    )
    return LoweringRecipe(
        partitioners=[partitioner],
        edge_compile_config=EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=False),
    )


def _check_operators(recipe_type: Type, names: Sequence[str]) -> None:
    """Refuse an operator that its namespace does not have; the partitioner would ignore it.

    Operators of a namespace that is not registered yet are accepted, because they may be custom operators.
    """
    if not names:
        return
    known = {_dotted(registered) for registered in torch._C._dispatch_get_all_op_names()}
    namespaces = {name.partition(".")[0] for name in known}
    for name in names:
        if name.partition(".")[0] in namespaces and name not in known:
            close = sorted(one for one in known if one.rpartition(".")[0] == name.rpartition(".")[0])
            close = close or difflib.get_close_matches(name, known)
            raise OptionError(
                f"Recipe {recipe_type.id}: Option 'skip_ops_for_coreml_delegation': there is no operator {name!r}."
                + (f" Similar operators: {', '.join(close)}." if close else "")
            )


def _dotted(registered: str) -> str:
    """Convert `aten::add.Tensor` to the partitioner's form: `aten.add.tensor`."""
    namespace, _, rest = registered.partition("::")
    operator, _, overload = rest.partition(".")
    return f"{namespace}.{operator}.{overload or 'default'}".lower()


def _quantization(recipe_type: Type, options: Mapping[str, Any]) -> QuantizationRecipe | None:
    match recipe_type:
        case Type.FP32 | Type.FP16:
            return None
        case Type.PT2E_INT8_STATIC:
            return _pt2e_int8(activations=torch.quint8)
        case Type.PT2E_INT8_WEIGHT_ONLY:
            return _pt2e_int8(activations=torch.float32)
        case Type.TORCHAO_INT4_WEIGHT_ONLY_PER_CHANNEL | Type.TORCHAO_INT4_WEIGHT_ONLY_PER_GROUP:
            return _torchao_weights(torch.int4, options)  # type: ignore[attr-defined]  # torch's stubs lack it
        case Type.TORCHAO_INT8_WEIGHT_ONLY_PER_CHANNEL | Type.TORCHAO_INT8_WEIGHT_ONLY_PER_GROUP:
            return _torchao_weights(torch.int8, options)
        case Type.CODEBOOK_WEIGHT_ONLY:
            return _codebook(options)


def _pt2e_int8(*, activations: torch.dtype) -> QuantizationRecipe:
    from recipes_coreml.quantizer import CoreMLQuantizer

    quantization = ct.optimize.torch.quantization
    config = quantization.LinearQuantizerConfig(
        global_config=quantization.ModuleLinearQuantizerConfig(
            quantization_scheme="symmetric",
            activation_dtype=activations,
            weight_dtype=torch.qint8,
            weight_per_channel=True,
        )
    )
    return QuantizationRecipe(quantizers=[CoreMLQuantizer(config)])


def _torchao_weights(weight_dtype: torch.dtype, options: Mapping[str, Any]) -> QuantizationRecipe:
    group_size = options.get("group_size")  # declared by the recipe types with one scale per group
    granularity = PerAxis(axis=0) if group_size is None else PerGroup(group_size=group_size)
    config = IntxWeightOnlyConfig(weight_dtype=weight_dtype, granularity=granularity)
    problem = functools.partial(_problem_with_groups, group_size or 1)
    return _weights_of_chosen_layers(config, options["filter_fn"] or _is_linear, problem)


def _codebook(options: Mapping[str, Any]) -> QuantizationRecipe:
    block_size = list(options["block_size"])
    config = CodebookWeightOnlyConfig(dtype=getattr(torch, f"uint{options['bits']}"), block_size=block_size)
    problem = functools.partial(_problem_with_blocks, tuple(block_size))
    return _weights_of_chosen_layers(config, options["filter_fn"] or _is_linear_or_embedding, problem)


def _is_linear_or_embedding(module: torch.nn.Module, name: str) -> bool:
    return isinstance(module, torch.nn.Linear | torch.nn.Embedding)


def _weights_of_chosen_layers(
    config: IntxWeightOnlyConfig | CodebookWeightOnlyConfig, chosen: ModuleFilter, problem: Callable[[Shape], str]
) -> QuantizationRecipe:
    selects = functools.partial(_is_chosen_and_fits, chosen, problem)
    return QuantizationRecipe(ao_quantization_configs=[AOQuantizationConfig(config, selects)])


def _is_chosen_and_fits(
    chosen: ModuleFilter, problem: Callable[[Shape], str], module: torch.nn.Module, name: str
) -> bool:
    if not chosen(module, name):
        return False
    weight = getattr(module, "weight", None)
    # torchao has a clear error of its own for a module without weights, which only a filter_fn can choose.
    found = problem(tuple(weight.shape)) if isinstance(weight, torch.Tensor) else ""
    if found:
        warnings.warn(f"Layer {name!r} is left in float: {found}.", RecipesWarning, stacklevel=2)
    return not found


def _problem_with_groups(group_size: int, shape: Shape) -> str:
    """Why a weight cannot be quantized in groups along its rows, or an empty string."""
    if len(shape) != 2:
        return f"its weight has {len(shape)} dimensions, and ExecuTorch's Core ML backend takes 2"
    if shape[1] % group_size:
        return f"its {shape[1]} input features do not divide into groups of {group_size}"
    return ""


def _problem_with_blocks(block_size: Shape, shape: Shape) -> str:
    """Why a weight cannot have a lookup table for each block, or an empty string."""
    if len(shape) != 2:
        return f"its weight has {len(shape)} dimensions, and ExecuTorch's Core ML backend takes 2"
    block = [size if wanted == -1 else wanted for wanted, size in zip(block_size, shape, strict=True)]
    if any(size % part for part, size in zip(block, shape, strict=True)):
        return f"its weight of {shape[0]} by {shape[1]} does not divide into blocks of {block[0]} by {block[1]}"
    if block[0] != shape[0] and block[1] != shape[1]:
        return (
            f"blocks of {block[0]} by {block[1]} span neither all rows nor all columns of its {shape[0]} by {shape[1]}"
        )
    return ""
