"""The class whose tests hold for every plugin."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.util
import inspect
import json
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import importlib_metadata
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from recipes.common import OptionError, RecipesError, RecipesWarning, same
from recipes.plugins import (
    PROJECT,
    Option,
    OptionValue,
    Plugin,
    RecipeInfo,
    RecipeProvider,
    RecipeType,
    TargetProfile,
    split_target_name,
)
from recipes.registry import Registry
from recipes.testing.distinct import in_common

HEAVY = ("torch", "executorch", "torchao", "numpy")
"""Top-level modules that no listing imports, whatever the plugin."""

_PROBE = Path(__file__).with_name("probe.py")
_UPPER_BOUNDS = {"~=", "<", "<=", "==", "==="}
_UNKNOWN_OPTION = "no_such_option"


class PluginConformance:
    """What every plugin must do. Subclass it, name the plugin, and let pytest run it.

    The tests that take a recipe, a target or a module run once for each that the plugin has.

    Attributes:
        plugin: The name of the plugin's entry point.
        toolchain: Top-level modules that lowering needs. Listing must not import them, and the plugin must say so where
            one is absent.
        delegates: By backend: the id that its delegates have in a program, or None where it promises none and only
            gives kernels. A backend that is not in it must make a delegate, whatever its id.
        expected_failures: By the name of a test, `test_x` or `test_x[acme:fp16]`: why it fails. Strict: a test that is
            named and passes is a failure, and so is a name that no test has.
    """

    plugin: str = ""
    toolchain: tuple[str, ...] = ()
    delegates: Mapping[str, str | None] = {}
    expected_failures: Mapping[str, str] = {}

    # What a plugin may say of itself.

    def model_for(self, recipe_type: RecipeType) -> tuple[Any, Sequence[tuple[Any, ...]]]:
        """A small model that the recipe can lower, and samples to export and calibrate it with.

        Args:
            recipe_type: What it is lowered with.

        Returns:
            A module in evaluation mode, and tuples of its inputs. By default a linear layer of 64 features with a ReLU.
        """
        import torch

        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).eval()
        return model, [(torch.randn(1, 64, generator=generator),) for _ in range(8)]

    def options_for(self, recipe_type: RecipeType) -> Mapping[str, Any]:
        """Values for the options that the recipe requires.

        Args:
            recipe_type: The recipe.
        """
        return {}

    def values_for(self, recipe_type: RecipeType, option: Option) -> Sequence[Any]:
        """Values to try for an option: at least one must be allowed and change the recipe.

        Args:
            recipe_type: The recipe.
            option: One of its options.

        Returns:
            By default every choice, both booleans, numbers around the bounds and the default, or a function.
        """
        return _values(option)

    # How the tests are made.

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make a test for each recipe, target or module."""
        for parameter in ("recipe", "target", "module"):
            if parameter in metafunc.fixturenames:
                ids = self._ids(parameter)
                why = f"the plugin {self.plugin!r} gives no {parameter} to test"
                absent = [pytest.param("", marks=pytest.mark.skip(reason=why), id="none")]
                metafunc.parametrize(parameter, ids or absent)

    @pytest.fixture(autouse=True)
    def _strictly_expected(self, request: pytest.FixtureRequest) -> None:
        node = request.node
        for key in (node.originalname, node.name):
            if key in self.expected_failures:
                node.add_marker(pytest.mark.xfail(reason=self.expected_failures[key], strict=True))

    def _ids(self, parameter: str) -> list[str]:
        if parameter == "module":
            return list(self.toolchain)
        row = _load(self.plugin)
        if row is None:
            return []
        if parameter == "target":
            return [target.name for target in row.targets]
        return [r.id for provider in row.providers for r in provider.get_supported_recipes()]

    def _row(self) -> Plugin:
        row = _load(self.plugin)
        if row is None:
            pytest.skip(f"no plugin {self.plugin!r} is installed; test_plugin_is_usable tells more")
        return row

    def _made_by(self, recipe: str) -> tuple[RecipeProvider, RecipeType]:
        return next(
            (provider, recipe_type)
            for provider in self._row().providers
            for recipe_type in provider.get_supported_recipes()
            if recipe_type.id == recipe
        )

    def _skip_for_faults(self, provider: RecipeProvider, recipe_type: RecipeType) -> None:
        if any(fault for option in provider.describe(recipe_type).options for fault in _faults(option)):
            pytest.skip("an option is declared wrongly; test_options_are_declared_well tells more")

    def _resolves(self, recipe: str) -> tuple[RecipeProvider, RecipeType]:
        provider, recipe_type = self._made_by(recipe)
        self._skip_for_faults(provider, recipe_type)
        if _refusal(provider, recipe_type, self._options(recipe_type)):
            pytest.skip("the options do not resolve; test_options_resolve tells more")
        return provider, recipe_type

    def _can_build(self, recipe: str) -> tuple[RecipeProvider, RecipeType]:
        provider, recipe_type = self._resolves(recipe)
        found = provider.availability()
        if not found.available:
            pytest.skip(f"backend {provider.backend_name!r} cannot lower here: {found.reason}")
        return provider, recipe_type

    def _options(self, recipe_type: RecipeType) -> dict[str, Any]:
        return copy.deepcopy(dict(self.options_for(recipe_type)))

    def _probe(self, *, absent: tuple[str, ...] = ()) -> dict[str, Any]:
        """What a fresh interpreter tells of the plugin: with every toolchain present, or some modules absent."""
        options = {}
        for provider in self._row().providers:
            for recipe_type in provider.get_supported_recipes():
                given = self._options(recipe_type)
                with contextlib.suppress(TypeError, OptionError):  # a callable cannot be sent to another process
                    json.dumps(given)
                    provider.resolve_options(recipe_type, given)
                    options[recipe_type.id] = given
        traps = [module for module in (*HEAVY, *self.toolchain) if module not in absent]
        path = [entry for entry in sys.path if entry != str(_PROBE.parent)]
        request = {"plugin": self.plugin, "path": path, "traps": traps, "absent": absent, "options": options}
        answer: dict[str, Any] = json.loads(_ask(json.dumps(request)))
        return answer

    # Static: what can be read off.

    def test_expected_failures_name_tests(self) -> None:
        known = set()
        for name in dir(type(self)):
            if name.startswith("test_"):
                known.add(name)
                arguments = inspect.signature(getattr(self, name)).parameters
                for parameter in {"recipe", "target", "module"} & set(arguments):
                    known |= {f"{name}[{each}]" for each in self._ids(parameter)}
        unknown = [key for key in self.expected_failures if key not in known]
        _fail_for(
            [f"expected_failures names {key!r}, and there is no such test" for key in unknown],
            "Write test_name or test_name[recipe-id].",
        )

    def test_plugin_is_usable(self) -> None:
        if not self.plugin:
            pytest.fail(f"{type(self).__name__}: set plugin to the name of your entry point.", pytrace=False)
        row = _load(self.plugin)
        if row is None:
            pytest.fail(
                f"No installed distribution has an entry point {self.plugin!r} in the group {PROJECT!r}. Declare it in "
                f'pyproject.toml, [project.entry-points.{PROJECT}] {self.plugin} = "module", and install the package.',
                pytrace=False,
            )
        if row.state != "ok" and not _only_dangling(row):
            pytest.fail(f"The {row.origin} is {row.state} at {row.stage}: {row.reason}.", pytrace=False)
        if not (row.providers or row.targets or row.extensions):
            pytest.fail(f"The {row.origin} registers neither a provider nor a target.", pytrace=False)

    def test_metadata_bounds_what_it_needs(self) -> None:
        self._row()
        (entry_point,) = _entry_points(self.plugin)
        assert entry_point.dist is not None, "_row() has found its distribution"
        always = [r for r in map(Requirement, entry_point.dist.requires or ()) if "extra" not in str(r.marker)]
        problems = []
        for name in ("recipes-core", "executorch"):
            needs = [requirement for requirement in always if canonicalize_name(requirement.name) == name]
            if not needs:
                problems.append(f"{entry_point.dist.name} does not require {name}")
            elif not {one.operator for requirement in needs for one in requirement.specifier} & _UPPER_BOUNDS:
                problems.append(f"{entry_point.dist.name} requires {needs[0]}, which has no upper bound")
        _fail_for(
            problems,
            'Write dependencies = ["recipes-core~=0.1", "executorch>=1.5,<1.6"] with the versions that you have tried: '
            "with another one the plugin is then listed as incompatible, and nobody sees a traceback.",
        )

    def test_recipe_is_described(self, recipe: str) -> None:
        provider, recipe_type = self._made_by(recipe)
        info = provider.describe(recipe_type)
        problems = [
            f"{recipe}: {name} is empty" for name in ("summary", "weights", "activations") if not _text(info, name)
        ]
        if not re.fullmatch(rf"{provider.backend_name}:[a-z0-9_]+", recipe):
            problems.append(f"the id {recipe!r} must read {provider.backend_name}:name in lower case")
        _fail_for(problems, "Mend the RecipeInfo that describe() returns, or the member of the enum.")

    def test_options_are_declared_well(self, recipe: str) -> None:
        provider, recipe_type = self._made_by(recipe)
        options = provider.describe(recipe_type).options
        names = [option.name for option in options]
        problems = [f"{recipe}: two options are called {name!r}" for name in {n for n in names if names.count(n) > 1}]
        for option in options:
            problems += [f"{recipe}: option {option.name!r} {fault}" for fault in _faults(option)]
        _fail_for(problems, "Mend the Option in what describe() returns.")

    def test_options_resolve(self, recipe: str) -> None:
        provider, recipe_type = self._made_by(recipe)
        self._skip_for_faults(provider, recipe_type)
        given = self._options(recipe_type)
        refusal = _refusal(provider, recipe_type, given)
        _fail_for(
            [f"{recipe} cannot be made with the options {given}: {refusal}"] if refusal else [],
            "Give in options_for a value for every required option, and mend defaults that contradict each other.",
        )

    def test_target_is_described(self, target: str) -> None:
        profile = self._profile(target)
        problems = []
        if not profile.summary.strip():
            problems.append(f"the target {target} has no summary")
        if split_target_name(target) is None:
            problems.append(f"the target {target} is not called <os>-<arch>-<accelerator>-<precision>")
        _fail_for(problems, "Mend the TargetProfile.")

    def test_target_names_recipes_that_exist(self, target: str) -> None:
        known = _recipes_by_backend(self._row())
        missing = [
            f"the target {target} names the recipe {component.recipe!r}, and backend {component.backend!r} has "
            + ", ".join(sorted(known[component.backend]))
            for component in self._profile(target).components
            if component.recipe not in known.get(component.backend, {component.recipe})
        ]
        _fail_for(missing, "Mend the Component, or have the provider list the recipe type.")

    def _profile(self, target: str) -> TargetProfile:
        return next(profile for profile in self._row().targets if profile.name == target)

    # Lazy: listing is light.

    def test_listing_imports_nothing_heavy(self) -> None:
        self._tell_imports("listing", "Import it inside build_recipe, or in a module that only build_recipe imports.")

    def test_availability_imports_nothing_heavy(self) -> None:
        self._tell_imports(
            "availability",
            "Find out with Availability.of_host or importlib.util.find_spec; it is asked at every listing.",
        )

    def _tell_imports(self, during: str, advice: str) -> None:
        found = self._probe()
        problems = [
            f"{during} imports {trap['module']} ({trap['where']})"
            for trap in found["sprung"]
            if trap["during"] == during
        ]
        _fail_for(problems, advice)

    # Contract: what a provider must do.

    def test_unknown_option_is_refused(self, recipe: str) -> None:
        provider, recipe_type = self._resolves(recipe)
        given = self._options(recipe_type) | {_UNKNOWN_OPTION: 1}
        calls: dict[str, Callable[[], Any]] = {
            "resolve_options": lambda: provider.resolve_options(recipe_type, given),
            "create_recipe": lambda: provider.create_recipe(recipe_type, **given),
        }
        for name, call in calls.items():
            what = f"{recipe}: {name}() with the option {_UNKNOWN_OPTION!r}, which nobody declared,"
            with _building(provider, None):
                _must_refuse(call, _UNKNOWN_OPTION, what, "Leave the check of names to the base class.")

    def test_wrong_type_is_refused_before_building(self, recipe: str) -> None:
        provider, recipe_type = self._resolves(recipe)
        for option in provider.describe(recipe_type).options:
            given = self._options(recipe_type) | {option.name: object()}
            built: list[RecipeType] = []
            with _building(provider, built):
                _must_refuse(
                    functools.partial(provider.create_recipe, recipe_type, **given),
                    option.name,
                    f"{recipe}: create_recipe() with a plain object for the option {option.name!r}",
                    "Leave resolve_options and create_recipe as they are in the base class; override settle_options.",
                )
            if built:
                pytest.fail(f"{recipe}: build_recipe was called with a wrong {option.name!r}.", pytrace=False)

    def test_options_given_are_left_alone(self, recipe: str) -> None:
        provider, recipe_type = self._resolves(recipe)
        advice = "Return a new mapping from settle_options: dict(options)."
        given = {name: list(v) if isinstance(v, tuple) else v for name, v in self._options(recipe_type).items()}
        before = copy.deepcopy(given)
        effective = provider.resolve_options(recipe_type, given)
        if not same(given, before):
            _fail_for([f"{recipe}: resolve_options changed what it was given: {before} became {given}"], advice)
        parsed = {
            option.name: effective[option.name] if option.name in given else OptionValue(option.default, "default")
            for option in provider.describe(recipe_type).options
        }
        kept = copy.deepcopy(parsed)
        provider.settle_options(recipe_type, parsed)
        if not same(parsed, kept):
            changed = [name for name in {**kept, **parsed} if not same(kept.get(name), parsed.get(name))]
            _fail_for([f"{recipe}: settle_options changed what it was given: {', '.join(changed)}"], advice)

    def test_two_recipes_are_equal(self, recipe: str) -> None:
        provider, recipe_type = self._can_build(recipe)
        one, two = (provider.create_recipe(recipe_type, **self._options(recipe_type)) for _ in range(2))
        differ = [name for name in vars(one) if not same(getattr(one, name), getattr(two, name, None))]
        if differ or not same(one, two):
            _fail_for(
                [f"{recipe}: two calls of create_recipe with the same options differ in {', '.join(differ) or 'type'}"],
                "build_recipe must depend on the options alone: no counters, times or random numbers.",
            )

    def test_two_recipes_share_nothing(self, recipe: str) -> None:
        provider, recipe_type = self._can_build(recipe)
        one, two = (provider.create_recipe(recipe_type, **self._options(recipe_type)) for _ in range(2))
        _fail_for(
            [f"{recipe}: two calls of create_recipe give the same object at {place}" for place in in_common(one, two)],
            "Make every object anew in build_recipe: who changes one recipe must not change the next.",
        )

    def test_every_option_reaches_the_recipe(self, recipe: str) -> None:
        provider, recipe_type = self._can_build(recipe)
        problems = []
        for option in provider.describe(recipe_type).options:
            base = self._options(recipe_type)
            normal, effective = provider.create_recipe(recipe_type, **base), provider.resolve_options(recipe_type, base)
            tried = []
            for value in self.values_for(recipe_type, option):
                given = base | {option.name: value}
                try:
                    resolved = provider.resolve_options(recipe_type, given)
                except OptionError:
                    continue  # settle_options may refuse what the option alone allows
                if same(resolved[option.name].value, effective[option.name].value):
                    continue
                tried.append(value)
                if not same(normal, provider.create_recipe(recipe_type, **given)):
                    break
            else:
                problems.append(
                    f"{recipe}: option {option.name!r} has no effect: the recipe is the same with "
                    + " and ".join(map(repr, tried))
                    if tried
                    else f"{recipe}: no value other than the one in use was found for option {option.name!r}"
                )
        _fail_for(
            problems,
            "Use the option in build_recipe, give values that make a difference in values_for, or say in "
            "expected_failures why it has none.",
        )

    # Semantic: what recipes make. Needs torch and the toolchain.

    def test_recipe_exports(self, recipe: str) -> None:
        provider, recipe_type = self._can_export(recipe)
        made = _delegates(*self.model_for(recipe_type), self._registered(recipe_type))
        backend = provider.backend_name
        promised = self.delegates.get(backend, "")
        found = f"the program of {recipe} has " + (
            f"delegates of {', '.join(sorted(set(made)))}" if made else "no delegate"
        )
        if promised is None and made:
            pytest.fail(f"{found}, and delegates[{backend!r}] is None, which promises none.", pytrace=False)
        if promised == "" and not made:
            pytest.fail(
                f"{found}. Give a model that the backend takes in model_for, or set delegates = {{{backend!r}: None}} "
                "where it only gives kernels.",
                pytrace=False,
            )
        if promised and promised not in made:
            pytest.fail(
                f"{found}, and delegates[{backend!r}] promises {promised}. Give a model that the backend takes in "
                "model_for, or mend the partitioner.",
                pytrace=False,
            )

    def test_works_after_a_backend_that_took_all(self, recipe: str) -> None:
        self._runs_second(recipe, everything=True)

    def test_works_after_a_backend_that_took_a_part(self, recipe: str) -> None:
        self._runs_second(recipe, everything=False)

    def _runs_second(self, recipe: str, *, everything: bool) -> None:
        provider, recipe_type = self._can_export(recipe)
        from recipes.testing.first import ConformanceBackend, in_front_of

        combined = in_front_of(self._registered(recipe_type), everything=everything)
        taken = "every operation" if everything else "the last operation"
        what = f"{recipe} after another backend that took {taken}"
        advice = "The partitioner must leave calls of delegates alone, and the get_attr nodes that hold the delegates."
        try:
            made = _delegates(*self.model_for(recipe_type), combined)
        except Exception as error:
            _fail_for([f"{what}: the export fails: {type(error).__name__}: {error}"], advice)
        has = f"the program has delegates of {', '.join(made) or 'nobody'}"
        other = ConformanceBackend.__name__
        if made.count(other) != 1:
            _fail_for([f"{what}: the other's delegate, {other}, is gone; {has}"], advice)
        elif not everything and self.delegates.get(provider.backend_name, "") is not None and set(made) == {other}:
            _fail_for([f"{what}: it takes nothing of what is left; {has}"], advice)

    def test_target_combines(self, target: str) -> None:
        _needs_torch()
        registry, profile = Registry(), self._profile(target)
        found = registry.get_target(target)
        if found.state == "unavailable":
            pytest.skip(f"the target is unavailable: {found.reason}")
        own = {r.id: r for p in self._row().providers for r in p.get_supported_recipes()}
        options: dict[str, dict[str, Any]] = {}
        for component in profile.components:
            if component.recipe in own and component in found.active:
                required = self._options(own[component.recipe])
                options[component.backend] = {k: v for k, v in required.items() if k not in component.options}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RecipesWarning)
                registry.get_target_recipe(target, **options)
        except RecipesError as error:
            pytest.fail(f"The recipes of the target {target} cannot be one: {error}", pytrace=False)

    def _can_export(self, recipe: str) -> tuple[RecipeProvider, RecipeType]:
        _needs_torch()
        return self._can_build(recipe)

    def _registered(self, recipe_type: RecipeType) -> Any:
        registry = Registry(_entry_points(self.plugin), environ={})
        return registry.get_recipe(recipe_type, **self._options(recipe_type))

    # Degradation: what is absent is told.

    def test_without_torch_everything_is_listed_with_the_reason(self) -> None:
        self._tell_absence((*HEAVY, *self.toolchain))

    def test_absent_toolchain_is_reported(self, module: str) -> None:
        self._tell_absence((module,), names=module)

    def _tell_absence(self, absent: tuple[str, ...], names: str = "") -> None:
        usual = self._probe()
        if usual["sprung"]:
            pytest.skip("listing imports what it must not; the tests of that tell more")
        found = self._probe(absent=tuple(dict.fromkeys(absent)))
        without = f"without {', '.join(dict.fromkeys(absent))}"
        if found.get("failed") or found["state"] != usual["state"]:
            why = found.get("failed") or f"{found['reason']}\n{found['raised']}"
            _fail_for(
                [f"{without} the plugin cannot be listed: {why}"],
                "Import the toolchain inside build_recipe, and have availability() say what is absent.",
            )
        problems = []
        for backend, was in usual["availability"].items():
            if not was["available"]:
                continue  # the host is at fault, with or without the toolchain
            now = found["availability"][backend]
            told = f"{without}: availability() of backend {backend!r}"
            if now["available"]:
                problems.append(f"{told} says that it is available")
            else:
                problems += [f"{told} gives no {what}" for what in ("reason", "hint") if not now[what].strip()]
                if names and now["reason"] and names not in now["reason"] + now["hint"]:
                    problems.append(f"{told} does not name {names}: {now['reason']!r}")
        if not problems and not all(was["available"] for was in usual["availability"].values()):
            pytest.skip("this host cannot lower whatever is installed: " + _reasons(usual))
        if not problems:
            problems += [
                f"{without}: the target {name} is listed as {row['state']} " + "without a reason"
                for name, row in found["targets"].items()
                if row["state"] != "ready" and not row["reason"]
            ]
        _fail_for(problems, "List what the toolchain consists of: Availability.of_host(modules={'module': 'package'}).")


def _reasons(found: Mapping[str, Any]) -> str:
    return "; ".join(row["reason"] for row in found["availability"].values() if row["reason"])


def _fail_for(problems: Sequence[str], advice: str) -> None:
    """Fail with what is wrong and what to do, if anything is wrong; a traceback into the kit would help nobody."""
    if problems:
        text = "\n".join(f"{problem.rstrip('.')}." for problem in problems)
        pytest.fail(f"{text}\n{advice}", pytrace=False)


def _entry_points(plugin: str) -> tuple[importlib_metadata.EntryPoint, ...]:
    return tuple(importlib_metadata.entry_points(group=PROJECT, name=plugin))


def _load(plugin: str) -> Plugin | None:
    """The plugin as the registry sees it, alone; None where it is not installed."""
    return _load_from(plugin, tuple(sys.path))


@functools.cache
def _load_from(plugin: str, path: tuple[str, ...]) -> Plugin | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecipesWarning)
        rows = Registry(_entry_points(plugin), environ={}).list_plugins()
    return rows[0] if rows else None


def _only_dangling(row: Plugin) -> bool:
    """Whether all that is wrong is that components name recipes that do not exist, which has a test of its own."""
    return row.state == "broken" and row.stage == "register" and row.error is None


@functools.cache
def _ask(request: str) -> str:
    done = subprocess.run([sys.executable, str(_PROBE), request], capture_output=True, text=True, timeout=120)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        pytest.fail(
            f"The interpreter that lists the plugin ended with {done.returncode}:\n{done.stderr}", pytrace=False
        )
    return lines[-1]


def _recipes_by_backend(row: Plugin) -> dict[str, set[str]]:
    """The recipe ids of every backend that is installed, the plugin's own among them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecipesWarning)
        rows = Registry().list_plugins()
    providers = [p for other in rows for p in other.providers] + list(row.providers)
    return {provider.backend_name: {r.id for r in provider.get_supported_recipes()} for provider in providers}


def _text(info: RecipeInfo, name: str) -> str:
    value = getattr(info, name)
    return value.strip() if isinstance(value, str) else ""


def _faults(option: Option) -> Iterator[str]:
    """What is wrong with the declaration of an option."""
    if not option.name.isidentifier():
        yield "is not called by a Python identifier"
    if not option.help.strip():
        yield "has no help"
    if option.type != "str" and (option.choices or option.aliases or option.toolchain_enum):
        yield f"has choices, aliases or a toolchain_enum, which are for str, and is {option.type}"
    if option.aliases and not option.choices:
        yield "has aliases and no choices"
    stray = [alias for alias, choice in option.aliases.items() if choice not in option.choices]
    if option.choices and stray:
        yield f"has aliases that stand for no choice: {', '.join(stray)}"
    if len(set(option.choices)) < len(option.choices):
        yield "has the same choice twice"
    if option.minimum is not None and option.maximum is not None and option.minimum > option.maximum:
        yield f"has a minimum of {option.minimum:g} above its maximum of {option.maximum:g}"
    if option.required and option.default is not None:
        yield "is required and has a default"
    if not option.required:
        try:
            option.parse(option.default)
        except OptionError as error:
            yield f"has a default that it does not allow: {error}"


def _refusal(provider: RecipeProvider, recipe_type: RecipeType, given: Mapping[str, Any]) -> str:
    """Why options do not resolve, or an empty string."""
    try:
        provider.resolve_options(recipe_type, given)
    except OptionError as error:
        return str(error)
    return ""


def _chooses_all(*arguments: Any) -> bool:
    return True


def _values(option: Option) -> list[Any]:
    if option.choices:
        return list(option.choices)
    if option.type == "bool":
        return [True, False]
    if option.type == "callable":
        return [_chooses_all]
    if option.type in ("str", "strs"):
        return ["other"] if option.type == "str" else [["other"]]
    step = option.multiple_of or 1
    start = option.default if isinstance(option.default, int | float) else option.minimum or 0
    numbers = [start + step, start - step, start * 2, option.minimum, option.maximum]
    if option.type == "float":
        numbers += [start + 0.5, start / 2]
    else:
        numbers = [int(number) for number in numbers if number is not None]
    allowed = [number for number in numbers if number is not None]
    return [[number] for number in allowed] if option.type == "ints" else allowed


def _building(provider: RecipeProvider, built: list[RecipeType] | None) -> Any:
    """Has build_recipe only write down that it was called; with None, say so instead."""

    def instead(self: RecipeProvider, recipe_type: RecipeType, options: Mapping[str, OptionValue]) -> None:
        if built is not None:
            built.append(recipe_type)

    return mock.patch.object(type(provider), "build_recipe", instead)


def _must_refuse(call: Callable[[], Any], names: str, what: str, advice: str) -> None:
    try:
        call()
    except OptionError as error:
        if names not in str(error):
            _fail_for([f"{what} is refused with an error that does not name {names!r}: {error}"], advice)
    except Exception as error:
        _fail_for([f"{what} ends with {type(error).__name__}, and must with OptionError: {error}"], advice)
    else:
        _fail_for([f"{what} is taken without a word, and must be refused with OptionError"], advice)


def _needs_torch() -> None:
    missing = [module for module in ("torch", "executorch") if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")


def _delegates(model: Any, samples: Sequence[tuple[Any, ...]], recipe: Any) -> list[str]:
    """Export, and give the ids of the delegates in the program."""
    from recipes.lowering import export

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a small model on few samples there is much to say
        session = export(model, recipe, list(samples))
    plans = session.get_executorch_program().execution_plan
    return [delegate.id for plan in plans for delegate in plan.delegates]
