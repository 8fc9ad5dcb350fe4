"""The factories of the OpenVINO recipes. Imports torch and openvino: only `build_recipe` imports this module."""

from __future__ import annotations

import copy
import difflib
import functools
from collections.abc import Collection, Mapping
from typing import Any

import openvino
import torch
from executorch.exir import EdgeCompileConfig
from executorch.export import ExportRecipe, LoweringRecipe, QuantizationRecipe
from torch.export import ExportedProgram
from torch.fx import Node

from recipes import OptionError
from recipes_openvino.half import overflows_half
from recipes_openvino.partitioner import SkippingPartitioner, looks_up_short_rows
from recipes_openvino.recipe_types import OpenVINORecipeType as Type

_SKIP = "skip_ops_for_openvino_delegation"


def build(recipe_type: Type, options: Mapping[str, Any]) -> ExportRecipe:
    """Make a fresh recipe.

    Args:
        recipe_type: The recipe type.
        options: The effective value of every option that the recipe type declares.

    Raises:
        OptionError: The device is not in this host, or an operator to skip does not exist.
    """
    device, skipped = options["device"], options[_SKIP]
    _check_device(recipe_type, device)
    _check_operators(recipe_type, skipped)
    return ExportRecipe(
        name=recipe_type.value,
        quantization_recipe=_quantization(skipped) if recipe_type is Type.INT8 else None,
        aten_transform_passes=(
            [functools.partial(store_weights_in_half, skipped=skipped)] if recipe_type is Type.FP16 else None
        ),
        lowering_recipe=LoweringRecipe(
            partitioners=[SkippingPartitioner(device, skipped)],
            edge_compile_config=EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=False),
        ),
    )


def _quantization(skipped: Collection[str]) -> QuantizationRecipe:
    from recipes_openvino.quantizer import OpenVINOQuantizer

    return QuantizationRecipe(quantizers=[OpenVINOQuantizer(skipped)])


def _check_device(recipe_type: Type, device: str) -> None:
    """Refuse a device that this host lacks; ExecuTorch would only fail an assertion during lowering."""
    present = openvino.Core().available_devices
    if device not in present:
        raise OptionError(
            f"Recipe {recipe_type.id}: Option 'device' is {device!r}, and OpenVINO compiles on the device itself: this "
            f"host has {', '.join(present) or 'none'}."
        )


def _check_operators(recipe_type: Type, names: Collection[str]) -> None:
    """Refuse an operator that its namespace does not have, because skipping it would have no effect."""
    if not names:
        return
    known = {_dotted(registered) for registered in torch._C._dispatch_get_all_op_names()}
    namespaces = {name.partition(".")[0] for name in known}
    for name in names:
        if name.partition(".")[0] in namespaces and name not in known:
            close = sorted(one for one in known if one.rpartition(".")[0] == name.rpartition(".")[0])
            close = close or difflib.get_close_matches(name, known)
            raise OptionError(
                f"Recipe {recipe_type.id}: Option {_SKIP!r}: there is no operator {name!r}."
                + (f" Similar operators: {', '.join(close)}." if close else "")
            )


def _dotted(registered: str) -> str:
    """Convert `aten::add.Tensor` to the form of options: `aten.add.Tensor`."""
    namespace, _, rest = registered.partition("::")
    operator, _, overload = rest.partition(".")
    return f"{namespace}.{operator}.{overload or 'default'}"


def store_weights_in_half(method: str, program: ExportedProgram, *, skipped: Collection[str] = ()) -> ExportedProgram:
    """Round weights to float16, and convert them back to float32 in the program, where they are used.

    OpenVINO's own tools write models in float16 in this form: compilers keep such a weight small, or expand it if
    their kernels need that. Some weights are not rounded: those with one dimension, such as biases, those with values
    that float16 cannot represent, and those of operators that are kept off OpenVINO, because XNNPACK accepts only
    constants.

    Args:
        method: The method's name, which is not used.
        program: The program; it is not changed.
        skipped: Operators that are kept off OpenVINO, as `namespace.operator.overload`.
    """
    module, signature = copy.deepcopy(program.graph_module), copy.deepcopy(program.graph_signature)
    for copied, node in zip(module.graph.nodes, program.graph.nodes, strict=True):
        copied.name = node.name  # copying renames nodes that have the name of a Python builtin, such as `input`
    state = dict(program.state_dict)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node in placeholders:
        name = signature.inputs_to_parameters.get(node.name)
        if name is None or not _fits_half(state[name]) or any(_is_kept_off(user, skipped) for user in node.users):
            continue
        state[name] = torch.nn.Parameter(state[name].detach().half(), requires_grad=False)
        _convert_back(module.graph, node, placeholders[-1])
    module.recompile()
    return program._update(module, signature, state_dict=state)


def _is_kept_off(node: Node, skipped: Collection[str]) -> bool:
    name = str(node.target)
    return name in skipped or looks_up_short_rows(name, node)


def _fits_half(weight: torch.Tensor) -> bool:
    return weight.dtype is torch.float32 and weight.ndim > 1 and not overflows_half(weight)


def _convert_back(graph: torch.fx.Graph, weight: Node, after: Node) -> None:
    single = weight.meta["val"]
    with graph.inserting_after(after):
        converted = graph.call_function(torch.ops.aten._to_copy.default, (weight,), {"dtype": torch.float32})
    converted.meta = {**weight.meta, "val": single}
    weight.replace_all_uses_with(converted, delete_user_cb=lambda user: user is not converted)
    with single.fake_mode:
        weight.meta["val"] = single.half()
