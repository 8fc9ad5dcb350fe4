"""`ExportRecipe`: ExecuTorch's recipe that also records where each of its parts came from."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import executorch.export
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig
from executorch.exir._warnings import ExperimentalWarning
from executorch.export import LoweringRecipe, QuantizationRecipe

from recipes.common import ArgumentError, Copier, did_you_mean
from recipes.plugins import MadeRecipe, default_catalog
from recipes.recipe.merging import merge, refuse_unknown_field
from recipes.recipe.passes import GuardedPasses, is_pass_manager
from recipes.recipe.policies import FIELD_POLICIES, Policy, copy_fields, copy_value, slots
from recipes.recipe.provenance import DERIVED, Explanation, Provenance, Source, copied_provenance, trace

if TYPE_CHECKING:
    from recipes.plugins import RecipeType


_NESTED_CLASSES: dict[str, type] = {
    "quantization_recipe": QuantizationRecipe,
    "lowering_recipe": LoweringRecipe,
    "lowering_recipe.edge_compile_config": EdgeCompileConfig,
    "executorch_backend_config": ExecutorchBackendConfig,
}


@dataclass(frozen=True)
class ExtraPasses:
    """An edge transform that returns the same passes for every method.

    Args:
        passes: The `extra_passes` of `ExportRecipe.derive`.
    """

    passes: tuple[Callable[..., Any], ...]

    def __call__(self, method: str, program: Any) -> list[Callable[..., Any]]:
        return list(self.passes)


# ExecuTorch warns that recipes are experimental whenever one of its own is made, or its class is
# subclassed. We subclass it here, so users need not see that warning.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", ExperimentalWarning)

    @dataclass
    class ExportRecipe(executorch.export.ExportRecipe):
        """ExecuTorch's `ExportRecipe` with provenance; `executorch.export.export` takes it too.

        Args:
            provenance: Where each part came from, as recorded when the recipe was made. Comparisons ignore it.
                `explain` returns the current state.
        """

        provenance: Provenance | None = dataclasses.field(default=None, compare=False, repr=False)

        @classmethod
        def get_recipe(cls, recipe: RecipeType | str | executorch.export.RecipeType, **options: Any) -> ExportRecipe:
            """The recipe of a recipe type, from the plugin that provides it.

            Args:
                recipe: A plugin's recipe type, its id such as `acme:fp16`, or ExecuTorch's own recipe type.
                options: Values for the options that the recipe type declares.

            Raises:
                UnknownRecipeError: No installed plugin provides it.
                OptionError: An option is unknown or has a value that is not allowed.
            """
            return cls._from_plugin(default_catalog()._make(recipe, options))

        @classmethod
        def _from_plugin(cls, made: MadeRecipe) -> ExportRecipe:
            """The recipe that a plugin made, with its provenance.

            Args:
                made: What `Catalog._make` returned.
            """
            plugin = made.plugin
            source = Source(plugin.name, plugin.distribution, plugin.version, made.recipe_type.id, made.options)
            return cls.from_executorch(made.recipe, source)

        @classmethod
        def combine(
            cls, recipes: Iterable[executorch.export.ExportRecipe], recipe_name: str | None = None
        ) -> ExportRecipe:
            """Merge recipes into one, field by field; docs/merge.md has the policy of each.

            Args:
                recipes: Recipes of ours and of ExecuTorch's, in any mixture, in partitioning order. They are neither
                    changed nor shared.
                recipe_name: The result's name; by default the recipes' names, joined with `_`.

            Returns:
                The merged recipe. A single recipe of ours is returned unchanged, or as a copy under the new name.

            Raises:
                ArgumentError: The list is empty, or an item is not a recipe.
                RecipeConflictError: The recipes disagree; the message names every such field, the recipes and their
                    values.
                UnknownFieldError: A recipe sets a field that has no policy here.
            """
            if isinstance(recipes, executorch.export.ExportRecipe):
                raise ArgumentError("combine takes a list of recipes; got one recipe. Write combine([recipe]).")
            if not isinstance(recipes, Iterable):
                raise ArgumentError(f"combine takes a list of recipes, not {type(recipes).__name__}.")
            ours = []
            for i, recipe in enumerate(recipes):
                if not isinstance(recipe, executorch.export.ExportRecipe):
                    raise ArgumentError(
                        f"combine takes a list of recipes; recipes[{i}] is of type {type(recipe).__name__}. "
                        "Make recipes with get_recipe first."
                    )
                known = isinstance(recipe, ExportRecipe)
                ours.append(recipe if known else cls.from_executorch(recipe, Source(recipe=recipe.name or "")))
            return merge(ours, recipe_name)

        @classmethod
        def from_executorch(cls, recipe: executorch.export.ExportRecipe, source: Source) -> ExportRecipe:
            """A copy of a recipe that records who made it.

            Args:
                recipe: ExecuTorch's, or ours; it is neither changed nor shared.
                source: Who made it. More precise provenance that was recorded earlier is kept.

            Raises:
                UnknownFieldError: The recipe's class has a field that ours does not have, and the recipe sets it.
            """
            if not isinstance(recipe, executorch.export.ExportRecipe):
                raise ArgumentError(f"{source.label}: expected an ExportRecipe, got {type(recipe).__name__}.")
            known = {f.name for f in dataclasses.fields(cls)}
            for slot in slots(recipe):
                if "." not in slot.path and slot.path not in known and slot.is_set:
                    refuse_unknown_field(source.label, slot)
            copier = Copier()
            values = {name: value for name, value in copy_fields(recipe, copier).items() if name in known}
            values["provenance"] = copied_provenance(trace(recipe, source), copier)
            return cls(**values)

        def explain(self) -> Explanation:
            """Explain which plugin and recipe set each part, and with which options; print the result.

            A part that was changed after it was recorded is shown as set by hand. The elements of a list are
            recognized by identity, so a change inside a partitioner or quantizer is not shown.
            """
            return Explanation(self.name or "", trace(self))

        def derive(
            self, name: str | None = None, *, extra_passes: Sequence[Callable[..., Any]] = (), **fields: Any
        ) -> ExportRecipe:
            """Return a changed copy. This recipe is not changed, and the copy's provenance records the changes.

            Args:
                name: The copy's name; by default this recipe's.
                extra_passes: Passes over the edge graph, such as `ExportPass` objects. They run for every
                    method, after those of the recipe and before partitioning.
                fields: New values for any field of `ExportRecipe` or of the dataclasses inside it, by the
                    field's own name: `strict=False`, `segment_alignment=512`, `preserve_ops=[...]`.

            Raises:
                ArgumentError: No field has that name, or a field cannot have the value.
            """
            homes = _homes(type(self))
            for given in fields:
                if given not in homes:
                    raise ArgumentError(
                        f"derive: recipes have no field {given!r}.{did_you_mean(given, homes)} "
                        f"The fields are: {', '.join(sorted(homes))}."
                    )
            copier = Copier()
            values = copy_fields(self, copier)
            values["provenance"] = copied_provenance(trace(self), copier)
            made = type(self)(**values)
            made.name = self.name if name is None else name
            # Outer fields first, so that a whole config and one of its fields can be given together.
            for given in sorted(fields, key=lambda field_name: homes[field_name].count(".")):
                owner, class_name = _reach(made, homes[given])
                policy = FIELD_POLICIES.get(f"{class_name}.{given}")
                try:
                    setattr(owner, given, copy_value(fields[given], policy, given, Copier()))
                except TypeError as error:  # not a dataclass where one must be
                    raise ArgumentError(f"derive: {homes[given]}: {error}") from error
            if extra_passes:
                _append_passes(made, extra_passes)
            changed = [homes[given] for given in fields]
            recorded = made.provenance or Provenance()
            given_now = {p for p in recorded.filled_in for c in changed if c.startswith(p) or p.startswith(c)}
            made.provenance = replace(
                recorded, filled_in=tuple(path for path in recorded.filled_in if path not in given_now)
            )
            made.provenance = trace(made, Source(recipe=made.name or "", manner=DERIVED))
            return made


def _homes(recipe_class: type) -> dict[str, str]:
    """The path of each field by its name, which is unique across the dataclasses of a recipe."""
    homes = {f.name: f.name for f in dataclasses.fields(recipe_class) if f.name not in ("name", "provenance")}
    for path, nested in _NESTED_CLASSES.items():
        homes |= {f.name: f"{path}.{f.name}" for f in dataclasses.fields(nested)}
    return homes


def _reach(recipe: ExportRecipe, path: str) -> tuple[Any, str]:
    """The dataclass that holds the field at `path`, created if it is missing, and the name of its class."""
    owner: Any = recipe
    class_name = "ExportRecipe"
    reached = ""
    for part in path.split(".")[:-1]:
        reached = f"{reached}.{part}".lstrip(".")
        if getattr(owner, part) is None:
            # A copy: ExecuTorch's default configs share their passes.
            setattr(owner, part, copy_value(_NESTED_CLASSES[reached](), Policy.MERGE, part, Copier()))
        owner = getattr(owner, part)
        class_name = _NESTED_CLASSES[reached].__name__
    return owner, class_name


def _append_passes(recipe: ExportRecipe, passes: Sequence[Callable[..., Any]]) -> None:
    """Append passes to a recipe's edge transforms, which from then on may not return a pass manager."""
    for i, item in enumerate(passes):
        if not callable(item) or is_pass_manager(item):
            raise ArgumentError(f"derive: extra_passes[{i}] must be a pass, not {type(item).__name__}.")
    lowering, _ = _reach(recipe, "lowering_recipe.edge_transform_passes")
    guards = {
        id(item): GuardedPasses(item, recipe.name or "this recipe")
        for item in lowering.edge_transform_passes or ()
        if not isinstance(item, GuardedPasses)
    }
    extra = ExtraPasses(tuple(Copier()("passes", item) for item in passes))
    lowering.edge_transform_passes = [
        *(guards.get(id(item), item) for item in lowering.edge_transform_passes or ()),
        extra,
    ]
    recorded = recipe.provenance or Provenance()
    origins = tuple(replace(o, value=guards.get(id(o.value), o.value)) for o in recorded.origins)
    recipe.provenance = replace(recorded, origins=origins)
