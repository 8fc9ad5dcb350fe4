"""Merge recipes into one: a policy for every field, conflicts that name every recipe, and provenance.

Reads and builds ExecuTorch's dataclasses through `dataclasses.fields`, so this module itself imports
neither ExecuTorch nor torch. `docs/merge.md` explains the rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from recipes.common import OPERATORS, ArgumentError, Copier, RecipeConflictError, UnknownFieldError, describe, same
from recipes.recipe.passes import GuardedPasses, is_pass_manager
from recipes.recipe.policies import (
    FIELD_POLICIES,
    NESTED,
    ChainedCalibration,
    Policy,
    Slot,
    copy_fields,
    default_of,
    is_empty,
    normal,
    slots,
)
from recipes.recipe.provenance import Decision, Origin, Provenance, Source, copied_provenance, trace

if TYPE_CHECKING:
    from recipes.plugins import Role
    from recipes.recipe.export_recipe import ExportRecipe


_EMPTY_IS_NONE = ("quantization_recipe", "lowering_recipe")
"""Nested recipes that count as absent when they set nothing, as in ExecuTorch; a default *config* stays."""


def refuse_unknown_field(label: str, slot: Slot) -> None:
    """Raise for a field that has no policy.

    Args:
        label: The name of the recipe for the message.
        slot: The field.
    """
    raise UnknownFieldError(
        f"Recipe {label} sets {slot.path} = {describe(slot.value)}. This version of recipes-core has no policy for "
        "that field and could only drop it. Leave it at its default, or use a recipes-core that knows it."
    )


def merge(
    recipes: Sequence[ExportRecipe], name: str | None = None, *, roles: Sequence[Role] | None = None
) -> ExportRecipe:
    """Merge recipes into one by `FIELD_POLICIES`.

    Args:
        recipes: At least one; their order is partitioning order. None of them is changed or shared.
        name: The result's name; by default the recipes' names, joined with `_`.
        roles: In a target: each recipe's role. Where opinions differ, the accelerator's wins.

    Returns:
        The merged recipe; a single recipe is returned unchanged, or as a copy where another name is given.

    Raises:
        RecipeConflictError: The recipes disagree; the message names every such field.
        UnknownFieldError: A recipe sets a field that has no policy.
    """
    if not recipes:
        raise ArgumentError("There is nothing to combine: the list of recipes is empty.")
    if len(recipes) == 1:
        only = recipes[0]
        if not name or name == only.name:
            return only
        copier = Copier()
        values = {**copy_fields(only, copier), "name": name, "provenance": copied_provenance(trace(only), copier)}
        return type(only)(**values)
    labels = [recipe.name or f"recipes[{i}]" for i, recipe in enumerate(recipes)]
    labels = [f"{label} (recipes[{i}])" if labels.count(label) > 1 else label for i, label in enumerate(labels)]
    parts = []
    each_role: Sequence[Role | None] = roles or [None] * len(recipes)
    for label, recipe, role in zip(labels, recipes, each_role, strict=True):
        try:
            parts.append(_Part(label, recipe, trace(recipe), role))
        except ArgumentError as error:
            raise ArgumentError(f"Recipe {label}: {error}") from None
    merger = _Merger()
    values = merger.fields("ExportRecipe", "", [(part, part.recipe) for part in parts])
    if merger.conflicts:
        raise RecipeConflictError("\n".join(merger.conflicts))
    values["name"] = name or values["name"]
    carried = tuple(decision for part in parts for decision in part.provenance.decisions)
    values["provenance"] = Provenance(tuple(merger.origins), carried + tuple(merger.decisions), tuple(merger.filled_in))
    return type(recipes[0])(**values)


@dataclass
class _Part:
    """One of the recipes that are merged."""

    label: str
    recipe: ExportRecipe
    provenance: Provenance
    role: Role | None
    copier: Copier = field(default_factory=Copier)

    def __post_init__(self) -> None:
        self._elements = self.provenance.by_element()
        self._values = {origin.field: origin for origin in self.provenance.origins}

    def origin(self, path: str, element: Any) -> Origin:
        """The origin of an element of this recipe; call it once for each element, in order."""
        return self._elements[path, id(element)].pop(0)

    def sources(self, path: str) -> tuple[Source, ...]:
        """The sources of a value of this recipe; empty where the value is the default."""
        return self._values[path].sources if path in self._values else ()


@dataclass(frozen=True)
class _Vote:
    """What one recipe has in a field."""

    part: _Part
    slot: Slot

    @property
    def value(self) -> Any:
        return self.slot.value

    @property
    def label(self) -> str:
        return self.part.label

    @property
    def meaning(self) -> Any:
        return normal(self.slot.field.name, self.slot.value)

    def copy(self) -> Any:
        return self.part.copier(self.slot.field.name, self.value)


_Votes: TypeAlias = list[_Vote]


def _distinct(votes: _Votes) -> _Votes:
    """The first vote for each different value."""
    found: _Votes = []
    for vote in votes:
        if not any(same(vote.meaning, other.meaning) for other in found):
            found.append(vote)
    return found


class _Merger:
    """Merges field by field; collects conflicts instead of stopping at the first."""

    def __init__(self) -> None:
        self.conflicts: list[str] = []
        self.decisions: list[Decision] = []
        self.origins: list[Origin] = []
        self.filled_in: list[str] = []
        self._resolve: dict[Policy, Callable[[str, _Votes], Any]] = {
            Policy.MERGE: self._merge,
            Policy.NAME: self._name,
            Policy.CONCATENATE: self._concatenate,
            Policy.UNION: self._union,
            Policy.AGREE: self._agree,
            Policy.AT_MOST_ONE: self._at_most_one,
            Policy.CHAIN: self._chain,
            Policy.ON_WINS: self._other_than_default_wins,
            Policy.OFF_WINS: self._other_than_default_wins,
            Policy.OPINION: self._opinion,
        }

    def fields(self, class_name: str, path: str, owners: list[tuple[_Part, Any]]) -> dict[str, Any]:
        """The merged value of every field of a dataclass that several recipes hold."""
        fields = {f.name: f for _, owner in owners for f in dataclasses.fields(owner)}
        values: dict[str, Any] = {}
        for name, f in fields.items():
            policy = FIELD_POLICIES.get(f"{class_name}.{name}")
            votes = [
                _Vote(part, Slot(path + name, f, getattr(owner, name), policy))
                for part, owner in owners
                if hasattr(owner, name)
            ]
            if policy is Policy.PROVENANCE:
                continue  # set after the merge
            if policy is not None:
                values[name] = self._resolve[policy](path + name, votes)
            elif setters := [vote for vote in votes if vote.slot.is_set]:
                refuse_unknown_field(setters[0].label, setters[0].slot)
        if class_name == "QuantizationRecipe":
            self._check_quantization(path, owners)
        return values

    def _conflict(self, path: str, problem: str, votes: _Votes, advice: str) -> None:
        lines = [f"  {vote.label}: {describe(vote.value)}" for vote in votes]
        self.conflicts.append("\n".join([f"Cannot combine recipes: {problem} {path}.", *lines, advice]))

    def _take(self, vote: _Vote, path: str, element: Any, guarded: bool = False) -> Any:
        """Copy an element and record its origin."""
        name = vote.slot.field.name
        copied = element if name in OPERATORS else vote.part.copier(name, element)
        origin = vote.part.origin(path, element)
        if guarded and not isinstance(copied, GuardedPasses):
            copied = GuardedPasses(copied, origin.sources[0].recipe or vote.label)
        shared = vote.part.copier.shared.get(id(element), origin.shared)
        self.origins.append(replace(origin, value=copied, shared=shared))
        return copied

    def _settle(self, path: str, vote: _Vote, holders: _Votes) -> Any:
        """Copy the value that was chosen, and record its origin where it is not the default."""
        value = vote.copy()
        if vote.slot.is_set:
            sources: list[Source] = []
            for holder in holders:
                sources += [source for source in holder.part.sources(path) if source not in sources]
            shared = vote.part.copier.shared.get(id(vote.value), "")
            # A second copy: the first may be changed in place, and would then differ from what was recorded.
            recorded = Copier()(vote.slot.field.name, value)
            self.origins.append(Origin(path, describe(value), tuple(sources), shared, recorded))
        return value

    def _name(self, path: str, votes: _Votes) -> str:
        return "_".join(vote.value for vote in votes if vote.value)

    def _merge(self, path: str, votes: _Votes) -> Any:
        name = votes[0].slot.field.name
        class_name = NESTED[name]
        present = [vote for vote in votes if vote.value is not None and path not in vote.part.provenance.filled_in]
        if name in _EMPTY_IS_NONE:
            present = [vote for vote in present if any(slot.is_set for slot in slots(vote.value, class_name))]
        if not present:
            return None
        values = self.fields(class_name, f"{path}.", [(vote.part, vote.value) for vote in present])
        if name == "lowering_recipe" and values["edge_compile_config"] is None:
            from executorch.exir import EdgeCompileConfig

            values["edge_compile_config"] = EdgeCompileConfig()
            self.filled_in.append(f"{path}.edge_compile_config")
        return type(present[0].value)(**values)

    def _givers(self, path: str, votes: _Votes) -> _Votes:
        """The votes that hold elements; a pass manager next to passes of others is a conflict."""
        givers = [vote for vote in votes if not is_empty(vote.value)]
        managers = any(is_pass_manager(item) for vote in givers for _, item in vote.slot.elements)
        if managers and len(givers) > 1:
            advice = "A pass manager would replace the passes of the others; give its passes as a list instead."
            self._conflict(path, "a pass manager cannot be merged with pass lists in", givers, advice)
        return givers

    def _concatenate(self, path: str, votes: _Votes) -> Any:
        givers = self._givers(path, votes)
        by_method = [vote for vote in givers if isinstance(vote.value, dict)]
        if by_method and len(by_method) < len(givers):
            advice = "Write the list by method too: {'forward': [...]}."
            self._conflict(path, "some have one list and others a list for each method in", givers, advice)
            return None
        if by_method:
            methods: dict[str, list[Any]] = {}
            start = len(self.origins)
            for vote in givers:
                for method, items in vote.value.items():
                    methods.setdefault(method, []).extend(self._take(vote, f"{path}[{method}]", item) for item in items)
            # In the order of the result, in which `trace` finds them later.
            order = [f"{path}[{method}]" for method in methods]
            self.origins[start:] = sorted(self.origins[start:], key=lambda origin: order.index(origin.field))
            return methods
        guarded = path == "lowering_recipe.edge_transform_passes" and len(givers) > 1
        taken = [self._take(vote, at, element, guarded) for vote in givers for at, element in vote.slot.elements]
        return taken or None

    def _union(self, path: str, votes: _Votes) -> Any:
        givers = self._givers(path, votes)
        taken: list[tuple[Any, int]] = []
        for vote in givers:
            before = list(taken)
            for at, element in vote.slot.elements:
                place = next((place for earlier, place in before if same(earlier, element)), None)
                if place is None:
                    taken.append((self._take(vote, at, element), len(self.origins) - 1))
                    continue
                known = self.origins[place]
                more = [s for s in vote.part.origin(at, element).sources if s not in known.sources]
                self.origins[place] = replace(known, sources=known.sources + tuple(more))
        return [element for element, _ in taken] or votes[0].copy()

    def _agree(self, path: str, votes: _Votes) -> Any:
        if len(_distinct(votes)) > 1:
            advice = f"Give all of them one value: recipe.derive({votes[0].slot.field.name}=...)."
            self._conflict(path, "they must agree on", votes, advice)
        return None if is_empty(votes[0].value) else self._settle(path, votes[0], votes)

    def _at_most_one(self, path: str, votes: _Votes) -> Any:
        givers = [vote for vote in votes if vote.value is not None]
        if len(givers) > 1:
            advice = f"Leave it out of all but one: recipe.derive({votes[0].slot.field.name}=None)."
            self._conflict(path, "more than one of them sets", givers, advice)
        return self._take(givers[0], path, givers[0].value) if givers else None

    def _chain(self, path: str, votes: _Votes) -> Any:
        functions = [self._take(vote, at, function) for vote in votes for at, function in vote.slot.elements]
        return ChainedCalibration(tuple(functions)) if len(functions) > 1 else functions[0] if functions else None

    def _other_than_default_wins(self, path: str, votes: _Votes) -> bool:
        holders = [vote for vote in votes if vote.slot.is_set]
        return bool(self._settle(path, (holders or votes)[0], holders))

    def _opinion(self, path: str, votes: _Votes) -> Any:
        opinions = [vote for vote in votes if vote.slot.is_set]
        standing = opinions
        if len(_distinct(opinions)) > 1:
            accelerators = [vote for vote in opinions if vote.part.role == "accelerator"]
            if len(_distinct(accelerators)) != 1:
                default = describe(default_of(votes[0].slot.field))
                advice = (
                    f"Give all of them one value, with recipe.derive({votes[0].slot.field.name}=...), "
                    f"or leave the default, {default}, in all but one."
                )
                self._conflict(path, "they differ in", opinions, advice)
                return None
            winner = accelerators[0]
            standing = [vote for vote in opinions if same(vote.meaning, winner.meaning)]
            losers = tuple(
                (vote.label, describe(vote.value)) for vote in opinions if not same(vote.meaning, winner.meaning)
            )
            reason = "an accelerator's value takes precedence over a fallback's"
            self.decisions.append(Decision(path, winner.label, describe(winner.value), losers, reason))
        return self._settle(path, (standing or votes)[0], standing)

    def _check_quantization(self, path: str, owners: list[tuple[_Part, Any]]) -> None:
        """Refuse quantizers and torchao configs that ExecuTorch would refuse, or handle wrongly, minutes later."""
        from torchao.quantization.pt2e.quantizer import Quantizer

        from recipes.executorch import folds_weights

        quantizers = [(part.label, item) for part, owner in owners for item in owner.quantizers or ()]
        configs = [(part.label, item) for part, owner in owners for item in owner.ao_quantization_configs or ()]
        legacy = [(label, item) for label, item in quantizers if not isinstance(item, Quantizer)]

        def refuse(name: str, problem: str, named: list[tuple[str, Any]], advice: str) -> None:
            lines = [f"  {label}: {describe(item)}" for label, item in named]
            self.conflicts.append("\n".join([f"Cannot combine recipes: {path}{name}: {problem}", *lines, advice]))

        if legacy and len(quantizers) > 1:
            refuse(
                "quantizers",
                "a quantizer that is not a torchao PT2E quantizer works only alone.",
                quantizers,
                "Use quantizers derived from torchao.quantization.pt2e.quantizer.Quantizer.",
            )
        unfolded = [(label, item) for label, item in quantizers if not folds_weights(item)]
        if unfolded and len(unfolded) < len(quantizers):
            refuse(
                "quantizers",
                "some have fold_quantize=False and others do not, but conversion treats all weights the same.",
                quantizers,
                "Let one of the backends quantize, and take the float recipe of the other.",
            )
        unfiltered = [(label, item) for label, item in configs if getattr(item, "filter_fn", None) is None]
        if unfiltered and len(configs) > 1:
            refuse(
                "ao_quantization_configs",
                "a config without a filter_fn takes every linear layer, so it leaves none to the others.",
                configs,
                "Give each config a filter_fn, so that no layer passes two of them.",
            )
        elif unfiltered and quantizers:
            refuse(
                "ao_quantization_configs",
                "a torchao config without a filter_fn takes every linear layer, and the PT2E quantizers would "
                "quantize those again.",
                [*unfiltered, *quantizers],
                "Give the config a filter_fn that leaves layers to the quantizers, and keep the quantizers off the "
                "config's layers.",
            )
