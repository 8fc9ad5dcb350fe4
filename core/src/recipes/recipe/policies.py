"""The fields of a recipe: the policy by which each is merged, and how to read and copy them.

Reads ExecuTorch's dataclasses through `dataclasses.fields`, so this module imports neither ExecuTorch
nor torch.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from recipes.common import OPERATORS, ArgumentError, Copier, describe, same


class Policy(enum.Enum):
    """How a field of several recipes is merged; the value is the rule in words."""

    MERGE = "merged field by field, from the recipes that have one"
    NAME = "the name given, else the recipes' names joined with `_`"
    PROVENANCE = "kept for every element and value"
    CONCATENATE = "all of them, in component order"
    UNION = "all of them, in component order; one that an earlier recipe has already is not repeated"
    AGREE = "equal in all recipes, or refused"
    AT_MOST_ONE = "one recipe may set it; two are refused"
    CHAIN = "one after the other, in component order"
    ON_WINS = "on where any recipe has it on"
    OFF_WINS = "off where any recipe has it off"
    OPINION = (
        "a value equal to the default is no opinion; one opinion holds for all; two different ones are refused, "
        "except that in a target the accelerator's wins over a fallback's"
    )


FIELD_POLICIES: dict[str, Policy] = {
    "ExportRecipe.name": Policy.NAME,
    "ExportRecipe.quantization_recipe": Policy.MERGE,
    "ExportRecipe.aten_transform_passes": Policy.CONCATENATE,
    # It decides what happens to the caller's own model, so no recipe may decide it for another.
    "ExportRecipe.source_transform_in_place": Policy.AGREE,
    "ExportRecipe.lowering_recipe": Policy.MERGE,
    "ExportRecipe.executorch_backend_config": Policy.MERGE,
    "ExportRecipe.pipeline_stages": Policy.AGREE,
    "ExportRecipe.mode": Policy.AGREE,
    "ExportRecipe.strict": Policy.AGREE,
    "ExportRecipe.provenance": Policy.PROVENANCE,
    "QuantizationRecipe.quantizers": Policy.CONCATENATE,
    "QuantizationRecipe.ao_quantization_configs": Policy.CONCATENATE,
    "QuantizationRecipe.is_qat": Policy.AGREE,
    # Allowing the batch to vary takes nothing from a recipe that does not need it.
    "QuantizationRecipe.dynamic_batch_size": Policy.ON_WINS,
    "QuantizationRecipe.calibration_inputs_fn": Policy.CHAIN,
    # Two trainings of one model have no order that would be right.
    "QuantizationRecipe.train_fn": Policy.AT_MOST_ONE,
    "QuantizationRecipe.pre_prepare_passes": Policy.CONCATENATE,
    "QuantizationRecipe.post_prepare_passes": Policy.CONCATENATE,
    "QuantizationRecipe.pre_convert_passes": Policy.CONCATENATE,
    "QuantizationRecipe.post_convert_passes": Policy.CONCATENATE,
    "LoweringRecipe.partitioners": Policy.CONCATENATE,
    "LoweringRecipe.edge_transform_passes": Policy.CONCATENATE,
    "LoweringRecipe.edge_manager_transform_passes": Policy.CONCATENATE,
    "LoweringRecipe.edge_compile_config": Policy.MERGE,
    # A check that one backend's programs fail has to be off; the others lose a check, not a result.
    "EdgeCompileConfig._check_ir_validity": Policy.OFF_WINS,
    # It decides which copy ops the whole program has: a backend made for one kind cannot take the other.
    "EdgeCompileConfig._skip_dim_order": Policy.AGREE,
    "EdgeCompileConfig._core_aten_ops_exception_list": Policy.UNION,
    # Not a union: an op that one backend needs decomposed must not be preserved because of another recipe.
    "EdgeCompileConfig.preserve_ops": Policy.OPINION,
    # A union, so that two recipes with equal configs result in that config, as in ExecuTorch.
    "ExecutorchBackendConfig.passes": Policy.UNION,
    "ExecutorchBackendConfig.memory_planning_pass": Policy.OPINION,
    "ExecutorchBackendConfig.propagate_device_config": Policy.OPINION,
    "ExecutorchBackendConfig.to_out_var_pass": Policy.OPINION,
    "ExecutorchBackendConfig.dynamic_memory_planning_mode": Policy.OPINION,
    "ExecutorchBackendConfig.emit_stacktrace": Policy.OPINION,
    "ExecutorchBackendConfig.extract_delegate_segments": Policy.OPINION,
    "ExecutorchBackendConfig.segment_alignment": Policy.OPINION,
    "ExecutorchBackendConfig.constant_tensor_alignment": Policy.OPINION,
    "ExecutorchBackendConfig.delegate_alignment": Policy.OPINION,
    "ExecutorchBackendConfig.sym_shape_eval_pass": Policy.OPINION,
    "ExecutorchBackendConfig.remove_view_copy": Policy.OPINION,
    "ExecutorchBackendConfig.external_constants": Policy.OPINION,
    "ExecutorchBackendConfig.external_mutable_weights": Policy.OPINION,
    "ExecutorchBackendConfig.emit_mutable_buffer_names": Policy.OPINION,
    "ExecutorchBackendConfig.do_quant_fusion_and_const_prop": Policy.OPINION,
    "ExecutorchBackendConfig.run_reinplace_pass": Policy.OPINION,
    "ExecutorchBackendConfig.enable_non_cpu_memory_planning": Policy.OPINION,
    "ExecutorchBackendConfig.reinplace_extra_ops": Policy.OPINION,
}
"""The policy of every field of ExecuTorch's recipe dataclasses, by `Class.field`."""

NESTED = {
    "quantization_recipe": "QuantizationRecipe",
    "lowering_recipe": "LoweringRecipe",
    "edge_compile_config": "EdgeCompileConfig",
    "executorch_backend_config": "ExecutorchBackendConfig",
}
"""The fields that hold a dataclass, and its name in `FIELD_POLICIES`."""

BY_ELEMENT = (Policy.CONCATENATE, Policy.UNION, Policy.CHAIN, Policy.AT_MOST_ONE)


@dataclass(frozen=True)
class ChainedCalibration:
    """Calibration inputs of several recipes, one after the other.

    Args:
        functions: Each returns an iterable of input tuples.
    """

    functions: tuple[Callable[[], Iterable[tuple[Any, ...]]], ...]

    def __call__(self) -> Iterator[tuple[Any, ...]]:
        for function in self.functions:
            yield from function()


@dataclass(frozen=True)
class Slot:
    """One field of a recipe or of a dataclass inside it.

    Args:
        path: As attributes of the recipe: `lowering_recipe.partitioners`.
        field: The dataclass field.
        value: What it holds.
        policy: None where `FIELD_POLICIES` does not know the field.
    """

    path: str
    field: dataclasses.Field[Any]
    value: Any
    policy: Policy | None

    @property
    def is_set(self) -> bool:
        """Whether the value is other than the default; an empty container counts as None."""
        default = default_of(self.field)
        if is_empty(self.value) and is_empty(default):
            return False
        return not same(normal(self.field.name, self.value), normal(self.field.name, default))

    @property
    def elements(self) -> list[tuple[str, Any]]:
        """Each element with its path; partitioners by method have the method in it."""
        if self.policy in (Policy.CHAIN, Policy.AT_MOST_ONE):
            functions = self.value.functions if isinstance(self.value, ChainedCalibration) else (self.value,)
            return [(self.path, function) for function in functions if function is not None]
        lists = self.value.items() if isinstance(self.value, dict) else [("", self.value)]
        found: list[tuple[str, Any]] = []
        for method, items in lists:
            path = f"{self.path}[{method}]" if method else self.path
            if items is not None and not isinstance(items, Collection):
                raise ArgumentError(f"{path} must be a list, not {describe(items)}.")
            found += [(path, item) for item in items or ()]
        return found


def default_of(of: dataclasses.Field[Any]) -> Any:
    """A field's default; `dataclasses.MISSING` where it has none."""
    return of.default if of.default_factory is dataclasses.MISSING else of.default_factory()


def is_empty(value: Any) -> bool:
    """Whether there is nothing in it: None, or a container without elements."""
    return value is None or (isinstance(value, list | tuple | dict | set | frozenset) and not value)


def normal(name: str, value: Any) -> Any:
    """The form in which values of a field are compared."""
    if name in OPERATORS:
        return frozenset(value or ())
    if name == "pipeline_stages":
        return list(value) if value else None
    return value


def slots(owner: Any, class_name: str = "ExportRecipe", path: str = "") -> Iterator[Slot]:
    """Every field of a recipe and of the dataclasses inside it, in order.

    Args:
        owner: A recipe, or one of the dataclasses in it.
        class_name: Its name in `FIELD_POLICIES`.
        path: Where it is in the recipe; empty, or with a dot at the end.
    """
    for f in dataclasses.fields(owner):
        value = getattr(owner, f.name)
        policy = FIELD_POLICIES.get(f"{class_name}.{f.name}")
        yield Slot(path + f.name, f, value, policy)
        if policy is Policy.MERGE and value is not None:
            if not dataclasses.is_dataclass(value):
                raise ArgumentError(f"{path}{f.name} must be of class {NESTED[f.name]}, not {describe(value)}.")
            yield from slots(value, NESTED[f.name], f"{path}{f.name}.")


def copy_value(value: Any, policy: Policy | None, name: str, copier: Copier) -> Any:
    """A copy of what a field holds, down to its elements.

    Args:
        value: What it holds.
        policy: The field's policy.
        name: The field's name.
        copier: Copies the elements.
    """
    if policy is Policy.MERGE and value is not None:
        return type(value)(**copy_fields(value, copier, NESTED[name]))
    if policy in (Policy.CONCATENATE, Policy.UNION) and isinstance(value, dict):
        return {method: copy_value(items, policy, name, copier) for method, items in value.items()}
    if policy in (Policy.CONCATENATE, Policy.UNION) and isinstance(value, list | tuple):
        return type(value)(item if name in OPERATORS else copier(name, item) for item in value)
    return value if policy is Policy.PROVENANCE else copier(name, value)


def copy_fields(owner: Any, copier: Copier, class_name: str = "ExportRecipe") -> dict[str, Any]:
    """A copy of every field of a recipe's dataclass, known or not, by name; provenance is left as it is.

    Args:
        owner: A recipe, or one of the dataclasses in it.
        copier: Copies the elements.
        class_name: Its name in `FIELD_POLICIES`.
    """
    return {
        f.name: copy_value(getattr(owner, f.name), FIELD_POLICIES.get(f"{class_name}.{f.name}"), f.name, copier)
        for f in dataclasses.fields(owner)
    }
