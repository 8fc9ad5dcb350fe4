"""The Core ML provider: describes its recipes and their options without importing torch or coremltools."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from recipes import (
    Availability,
    Finding,
    ModelFacts,
    OptionError,
    OptionValue,
    RecipeInfo,
    RecipeProvider,
    RecipeType,
)
from recipes_coreml.declared import CODEBOOK_BITS, RECIPES
from recipes_coreml.features import (
    DEPLOYMENT_TARGETS,
    HALF_INPUTS,
    ML_PROGRAM,
    NO_INPUTS,
    RECIPE_FEATURES,
    STATE,
    Feature,
    is_below,
    most_demanding,
)
from recipes_coreml.recipe_types import CoreMLRecipeType

if TYPE_CHECKING:
    import executorch.export


_OPERATOR = re.compile(r"\w+\.\w+\.\w+")
_FOLLOWS = "follows lower_full_graph and minimum_deployment_target"


class CoreMLProvider(RecipeProvider):
    """Recipes that lower to Core ML, for Apple's phones, tablets and computers."""

    @property
    def backend_name(self) -> str:
        """`coreml`."""
        return CoreMLRecipeType.get_backend_name()

    def get_supported_recipes(self) -> Sequence[RecipeType]:
        """Return every member of `CoreMLRecipeType`."""
        return list(RECIPES)

    def describe(self, recipe_type: RecipeType) -> RecipeInfo:
        """Describe what a recipe type does, and its options."""
        return RECIPES[recipe_type]

    def availability(self) -> Availability:
        """Check the platform: coremltools has wheels for some, and only Apple's systems run the models."""
        return Availability.of_host(
            modules={
                "executorch": "executorch>=1.5,<1.6",
                "torchao": "torchao>=0.18,<0.19",
                "coremltools": "coremltools==9.0",
            },
            platforms=(("Darwin", "arm64"), ("Darwin", "x86_64"), ("Linux", "x86_64")),
            python_below=(3, 14),
        )

    def settle_options(self, recipe_type: RecipeType, options: Mapping[str, OptionValue]) -> Mapping[str, OptionValue]:
        """Decide the deployment target and the options that depend on it; refuse options that contradict each other.

        Settling options that are already settled does not change them.
        """
        assert isinstance(recipe_type, CoreMLRecipeType), "the base class has checked it"
        _check_full_graph(recipe_type, options)
        settled = dict(options)
        settled["minimum_deployment_target"] = _settle_target(recipe_type, options)
        settled["take_over_mutable_buffer"] = _settle_takeover(options, settled["minimum_deployment_target"].value)
        settled["skip_ops_for_coreml_delegation"] = _settle_skipped(
            recipe_type, options["skip_ops_for_coreml_delegation"]
        )
        if recipe_type is CoreMLRecipeType.CODEBOOK_WEIGHT_ONLY:
            _check_codebook(recipe_type, options["bits"].value, options["block_size"].value)
        return settled

    def check_model(
        self, recipe_type: RecipeType, options: Mapping[str, OptionValue], facts: ModelFacts
    ) -> tuple[Mapping[str, OptionValue], Sequence[Finding]]:
        """Raise an unset deployment target to the one that the model needs; refuse one that was set too low."""
        import torch

        findings: list[Finding] = []
        changed: dict[str, OptionValue] = {}
        needs: list[tuple[Feature, str]] = []
        takeover = options["take_over_mutable_buffer"]
        started = [name for name, value in facts.updated_buffers.items() if bool(torch.count_nonzero(value))]
        if started:
            if _takes_over_by_wish(options):
                findings += [_lost_start(name) for name in started]
            elif takeover.value:
                reason = f"turned off: Core ML's state starts from zeros, and {', '.join(started)} does not"
                changed["take_over_mutable_buffer"] = OptionValue(False, reason)
                findings.append(Finding("note", "buffer-outside", ", ".join(started), _OUTSIDE))
        elif facts.updated_buffers and not (takeover.value is False and takeover.source != _FOLLOWS):
            needs += [(STATE, name) for name in facts.updated_buffers]
        needs += [(HALF_INPUTS, name) for name, value in facts.inputs.items() if value.dtype == torch.float16]
        if not facts.inputs:
            needs.append((NO_INPUTS, f"method {facts.method!r}"))
        target = options["minimum_deployment_target"]
        for feature, where in needs:
            if is_below(target.value or ML_PROGRAM.needs, feature.needs):
                findings.append(_too_low(target, feature, where))
        if needs and not any(finding.level == "error" for finding in findings):
            feature, where = max(needs, key=lambda need: DEPLOYMENT_TARGETS.index(need[0].needs))
            if is_below(target.value or ML_PROGRAM.needs, feature.needs):
                source = f"raised to {feature.needs}: {where} needs {feature.what}"
                changed["minimum_deployment_target"] = OptionValue(feature.needs, source)
        if recipe_type is not CoreMLRecipeType.FP32:
            findings += [_beyond_half(name) for name, value in facts.weights.items() if _overflows_half(value)]
        return changed, findings

    def build_recipe(
        self, recipe_type: RecipeType, options: Mapping[str, OptionValue]
    ) -> executorch.export.ExportRecipe:
        """Make a fresh recipe; imports torch, ExecuTorch and coremltools."""
        with _quiet_coremltools():
            from recipes_coreml import recipes

        assert isinstance(recipe_type, CoreMLRecipeType), "the base class has checked it"
        return recipes.build(recipe_type, {name: option.value for name, option in options.items()})


_OUTSIDE = (
    "this buffer starts from values that are not zero, but Core ML's state starts from zeros; ExecuTorch keeps it "
    "outside of Core ML."
)


def _lost_start(name: str) -> Finding:
    return Finding(
        "error",
        "state-starts-from-zeros",
        name,
        "this buffer starts from values that are not zero, and Core ML's state always starts from zeros.",
        "Leave take_over_mutable_buffer and lower_full_graph unset, so that ExecuTorch keeps it outside of Core ML.",
    )


def _too_low(target: OptionValue, feature: Feature, where: str) -> Finding:
    """Return an error if the user set the target, else a warning that it rises."""
    if target.source != "given":
        return Finding(
            "warning",
            "deployment-target-raised",
            where,
            f"the model needs {feature.what}, so the file needs {feature.needs} or later.",
            f"Pass minimum_deployment_target={feature.needs!r} to confirm that this is intended.",
        )
    outside = " or pass take_over_mutable_buffer=False to keep it outside of Core ML" if feature is STATE else ""
    return Finding(
        "error",
        "deployment-target-too-low",
        where,
        f"the model needs {feature.what}, which need {feature.needs}, and minimum_deployment_target is {target.value}.",
        f"Set it to {feature.needs} or later{outside}.",
    )


_LARGEST_HALF = 65504.0


def _overflows_half(value: Any) -> bool:
    if not value.is_floating_point() or value.element_size() <= 2 or not value.numel():
        return False
    finite = value.detach().abs()
    return bool(((finite > _LARGEST_HALF) & finite.isfinite()).any())


def _beyond_half(name: str) -> Finding:
    return Finding(
        "warning",
        "beyond-half-range",
        name,
        f"this has values beyond {_LARGEST_HALF:g}, the largest of float16, in which this recipe computes.",
        "Use a float32 recipe, or rescale it.",
    )


def _check_full_graph(recipe_type: CoreMLRecipeType, options: Mapping[str, OptionValue]) -> None:
    """Report all contradictions at once; the partitioner asserts the same, but later and one at a time."""
    if not options["lower_full_graph"].value:
        return
    against = []
    if options["skip_ops_for_coreml_delegation"].value:
        against.append("skip_ops_for_coreml_delegation")
    against += [
        f"{name}=False"
        for name in ("take_over_constant_data", "take_over_mutable_buffer")
        if options[name].value is False and options[name].source != _FOLLOWS
    ]
    if against:
        raise OptionError(
            f"Recipe {recipe_type.id}: lower_full_graph=True gives Core ML the whole model, which is not possible with "
            f"{' and '.join(against)}. Set only one of these."
        )


def _takes_over_by_wish(options: Mapping[str, OptionValue]) -> bool:
    takeover = options["take_over_mutable_buffer"]
    asked = bool(takeover.value) and takeover.source != _FOLLOWS
    return asked or bool(options["lower_full_graph"].value)


def _settle_target(recipe_type: CoreMLRecipeType, options: Mapping[str, OptionValue]) -> OptionValue:
    """Return the later of the requested and the needed target; with None, coremltools chooses iOS15."""
    asked = options["minimum_deployment_target"]
    needed = most_demanding(RECIPE_FEATURES[recipe_type])
    if asked.value is None and needed is ML_PROGRAM:
        return asked
    if _takes_over_by_wish(options):
        needed = most_demanding((needed, STATE))
    if asked.value is None:
        return OptionValue(needed.needs, f"raised to {needed.needs}: {needed.what} need it")
    if is_below(asked.value, needed.needs):
        because = " (take_over_mutable_buffer or lower_full_graph asks for them)" if needed is STATE else ""
        raise OptionError(
            f"Recipe {recipe_type.id}: minimum_deployment_target is {asked.value} ({asked.source}), but {needed.what} "
            f"need {needed.needs}{because}. Set it to {needed.needs} or later, or leave it unset."
        )
    return asked


def _settle_takeover(options: Mapping[str, OptionValue], target: str | None) -> OptionValue:
    given = options["take_over_mutable_buffer"]
    if given.value is not None and given.source != _FOLLOWS:
        return given
    has_state = target is None or not is_below(target, STATE.needs)
    return OptionValue(bool(options["lower_full_graph"].value) or has_state, _FOLLOWS)


def _settle_skipped(recipe_type: CoreMLRecipeType, skipped: OptionValue) -> OptionValue:
    """Convert names to lower case, as the partitioner compares them: `aten.add.Tensor` would never match."""
    names: Sequence[str] = skipped.value
    for name in names:
        if not _OPERATOR.fullmatch(name):
            raise OptionError(
                f"Recipe {recipe_type.id}: Option 'skip_ops_for_coreml_delegation' takes operators as "
                f"namespace.operator.overload, such as aten.linear.default; got {name!r}."
            )
    return OptionValue(tuple(name.lower() for name in names), skipped.source)


def _check_codebook(recipe_type: CoreMLRecipeType, bits: int, block_size: tuple[int, ...]) -> None:
    if bits not in CODEBOOK_BITS:
        raise OptionError(
            f"Recipe {recipe_type.id}: Option 'bits' must be one of {', '.join(map(str, CODEBOOK_BITS))}, the widths "
            f"that Core ML has; got {bits}."
        )
    if len(block_size) != 2 or 0 in block_size:
        raise OptionError(
            f"Recipe {recipe_type.id}: Option 'block_size' must be two numbers, rows and columns, each at least 1, "
            f"or -1 for all; got {list(block_size)}."
        )


@contextlib.contextmanager
def _quiet_coremltools() -> Iterator[Any]:
    """Suppress the warnings of coremltools while it is imported.

    On hosts other than a Mac, it warns that its device libraries are missing, which lowering does not need. On every
    host, it lists the versions of torch and scikit-learn that it was tested with.
    """
    logger = logging.getLogger("coremltools")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
