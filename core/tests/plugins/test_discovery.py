"""Finding plugins: each becomes a row, and none can harm another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import importlib_metadata
import pytest

from recipes import (
    BackendUnavailableError,
    PluginError,
    RecipesWarning,
    Registry,
    UnknownRecipeError,
    UnknownTargetError,
)
from recipes.plugins import discovery as plugins_module

Install = Callable[..., Path]


def plugin_source(backend: str = "acme", targets: Sequence[str] = (), before: str = "", components: str = "") -> str:
    """A good plugin's module."""
    parts = components or f'(Component("{backend}:fp16"),)'
    profiles = ", ".join(f'TargetProfile("{name}", {parts})' for name in targets)
    return f"""
    {before}
    from recipes import Availability, Component, Option, RecipeInfo, RecipeProvider, RecipeType, TargetProfile
    from recipes import TargetExtension, hookimpl

    class Kind(RecipeType):
        FP16 = "{backend}_fp16"
        INT8 = "{backend}_int8"

        @classmethod
        def get_backend_name(cls):
            return "{backend}"

    class Provider(RecipeProvider):
        backend_name = "{backend}"

        def get_supported_recipes(self):
            return list(Kind)

        def describe(self, recipe_type):
            return RecipeInfo("Half precision", "float16", "float16", options=(
                Option("level", "int", "How hard to try.", default=1, minimum=0, maximum=3),))

        def availability(self):
            return Availability(True)

        def build_recipe(self, recipe_type, options):
            raise AssertionError("listing must not build")

    @hookimpl
    def recipes_register_providers():
        return [Provider()]

    @hookimpl
    def recipes_register_targets():
        return [{profiles}]
    """


@pytest.fixture(autouse=True)
def _forget_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins_module, "_warned", set())


@pytest.fixture
def registry(plugin_site: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry]:
    """Make a registry of what is installed in `plugin_site`, quietly; the keywords are the environment."""
    monkeypatch.syspath_prepend(str(plugin_site))

    def make(**environ: str) -> Registry:
        found = importlib_metadata.MetadataPathFinder.find_distributions(
            importlib_metadata.DistributionFinder.Context(path=[str(plugin_site)])
        )
        entry_points = [e for dist in found for e in dist.entry_points if e.group == "recipes"]
        return Registry(entry_points, environ)

    return make


def rows(registry: Registry) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecipesWarning)
        return {plugin.name: plugin for plugin in registry.list_plugins()}


def test_a_good_plugin_is_listed_with_its_distribution_and_its_targets(
    installed_plugin: Install, registry: Callable[..., Registry]
) -> None:
    installed_plugin("acme", plugin_source(targets=["linux-x86_64-acme-fp16"]), version="2.5")
    scanned = registry()
    (row,) = scanned.list_plugins()
    assert (row.name, row.distribution, row.version, row.state, row.reason) == ("acme", "recipes-acme", "2.5", "ok", "")
    (target,) = scanned.list_targets()
    assert (target.name, target.state, target.os, target.arch) == ("linux-x86_64-acme-fp16", "ready", "linux", "x86_64")
    assert (target.accelerator, target.precision, target.plugin) == ("acme", "fp16", "acme")
    assert [recipe.id for recipe in scanned.list_recipes()] == ["acme:fp16", "acme:int8"]


def test_a_recipe_that_needs_more_than_its_backend_is_unavailable_alone(
    installed_plugin: Install, registry: Callable[..., Registry]
) -> None:
    needs = """
        def recipe_availability(self, recipe_type):
            lacks = Availability(False, "the ranges package is not installed", "pip install ranges")
            return lacks if recipe_type is Kind.INT8 else Availability(True)

        def build_recipe"""
    source = plugin_source(targets=["linux-x86_64-acme-int8"], components='(Component("acme:int8"),)').replace(
        "\n        def build_recipe", needs
    )
    installed_plugin("acme", source)
    scanned = registry()
    (target,) = scanned.list_targets(include_unavailable=True)
    assert target.state == "unavailable"
    assert (target.reason, target.hint) == ("acme:int8: the ranges package is not installed", "pip install ranges")
    assert [recipe.availability.available for recipe in scanned.list_recipes()] == [True, False]
    with pytest.raises(BackendUnavailableError, match=r"acme:int8 cannot be made here: .*\. pip install ranges"):
        scanned.get_recipe("acme:int8")


FAULTS = {
    "an import error": ("import nonexistent_toolchain", "import", "nonexistent_toolchain"),
    "a syntax error": ("def broken(:", "import", "SyntaxError"),
    "an exit at import": ("raise SystemExit('goodbye')", "import", "SystemExit: goodbye"),
    "a base exception at import": ("raise BaseException('odd')", "import", "odd"),
    "no hooks": ("x = 1", "register", "implements no hook"),
    "an unmarked hook": (
        "def recipes_register_providers(): return []",
        "register",
        "not marked with @recipes.hookimpl",
    ),
    "a misspelt hook": (
        "from recipes import hookimpl\n@hookimpl\ndef recipes_register_provider(): return []",
        "register",
        "Did you mean 'recipes_register_providers'",
    ),
    "a hook of another name": (
        (
            "from recipes import hookimpl\n@hookimpl\ndef recipes_register_targets(): return []\n"
            "@hookimpl\ndef make_coffee(): return []"
        ),
        "register",
        "make_coffee",
    ),
    "an unknown argument": (
        "from recipes import hookimpl\n@hookimpl\ndef recipes_register_providers(weather): return []",
        "register",
        "weather",
    ),
    "a hook that raises": (
        "from recipes import hookimpl\n@hookimpl\ndef recipes_register_providers(): raise RuntimeError('no disk')",
        "recipes_register_providers",
        "RuntimeError: no disk",
    ),
    "a hook that exits": (
        "from recipes import hookimpl\n@hookimpl\ndef recipes_register_targets(): raise SystemExit(3)",
        "recipes_register_targets",
        "SystemExit: 3",
    ),
    "a hook that returns no list": (
        "from recipes import hookimpl\n@hookimpl\ndef recipes_register_targets(): return 'ios'",
        "recipes_register_targets",
        "must return a list of TargetProfile or TargetExtension, not str",
    ),
    "a hook that returns nothing": (
        "from recipes import hookimpl\n@hookimpl\ndef recipes_register_providers(): pass",
        "recipes_register_providers",
        "must return a list of RecipeProvider, not NoneType",
    ),
    "a hook that returns other objects": (
        "from recipes import hookimpl\n@hookimpl\ndef recipes_register_providers(): return [object()]",
        "recipes_register_providers",
        "must return RecipeProvider objects",
    ),
    "a component that is a text": (
        (
            "from recipes import hookimpl, TargetProfile\n@hookimpl\n"
            "def recipes_register_targets(): return [TargetProfile('linux-x86_64-a-b', ('a:b',))]"
        ),
        "recipes_register_targets",
        "Target 'linux-x86_64-a-b' has the component 'a:b', not a recipes.Component",
    ),
    "a component whose options are no mapping": (
        (
            "from recipes import hookimpl, TargetProfile, Component\n@hookimpl\n"
            "def recipes_register_targets():\n"
            "    return [TargetProfile('linux-x86_64-a-b', (Component('a:b', options=[1]),))]"
        ),
        "recipes_register_targets",
        "options of the component 'a:b' must be a mapping, not [1]",
    ),
    "an extension of several patterns": (
        (
            "from recipes import hookimpl, TargetExtension, Component\n@hookimpl\n"
            "def recipes_register_targets():\n    return [TargetExtension(['ios-*'], Component('a:b', required=False))]"
        ),
        "recipes_register_targets",
        "takes a pattern of target names and a Component, not ['ios-*']",
    ),
    "an error that has no text": (
        "class Odd(Exception):\n    def __str__(self): raise self\nraise Odd",
        "import",
        "Odd: its text is unknown, because str() raises Odd",
    ),
    "a badly named target": (
        (
            "from recipes import hookimpl, TargetProfile, Component\n@hookimpl\n"
            "def recipes_register_targets(): return [TargetProfile('phone', (Component('a:b'),))]"
        ),
        "recipes_register_targets",
        "<os>-<arch>-<accelerator>-<precision>",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_plugin_is_a_row_with_stage_and_reason_and_harms_nobody(
    fault: str, installed_plugin: Install, registry: Callable[..., Registry]
) -> None:
    source, stage, reason = FAULTS[fault]
    installed_plugin("aaa_bad", source, requires=[])
    installed_plugin("good", plugin_source("good", ["linux-x86_64-good-fp16"]))
    installed_plugin("zzz_bad", source)
    scanned = registry()
    found = rows(scanned)
    assert {name: row.state for name, row in found.items()} == {"aaa_bad": "broken", "good": "ok", "zzz_bad": "broken"}
    assert found["aaa_bad"].stage == stage
    assert reason in found["aaa_bad"].reason
    assert [str(target) for target in scanned.list_targets()] == ["linux-x86_64-good-fp16"]


def test_a_broken_plugin_warns_once_in_a_process_and_names_itself(
    installed_plugin: Install, registry: Callable[..., Registry]
) -> None:
    installed_plugin("bad", "raise RuntimeError('no disk')")
    with pytest.warns(RecipesWarning, match=r"plugin 'bad' \(recipes-bad 1.0\) is broken: RuntimeError: no disk"):
        registry().list_plugins()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        registry().list_plugins()


def test_using_a_broken_plugin_says_which_where_why_and_how_to_switch_it_off(
    installed_plugin: Install, registry: Callable[..., Registry]
) -> None:
    installed_plugin("bad", "raise RuntimeError('no disk')")
    scanned = registry()
    rows(scanned)
    for use in (lambda: scanned.get_target("linux-x86_64-bad-fp16"), lambda: scanned.get_recipe("bad:fp16")):
        with pytest.raises(PluginError) as caught:
            use()
        for part in ("'bad'", "recipes-bad 1.0", "at import", "no disk", "RECIPES_DISABLE=bad"):
            assert part in str(caught.value)
        assert isinstance(caught.value.__cause__, RuntimeError)


def test_strict_raises_at_once_with_what_was_raised(
    installed_plugin: Install, registry: Callable[..., Registry]
) -> None:
    installed_plugin("bad", "raise RuntimeError('no disk')")
    with pytest.raises(PluginError, match="no disk") as caught:
        registry(RECIPES_STRICT="1").list_plugins()
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_disabled_plugins_are_not_imported_and_stay_listed(
    installed_plugin: Install, registry: Callable[..., Registry]
) -> None:
    installed_plugin("bad", "raise RuntimeError('no disk')")
    installed_plugin("good", plugin_source("good", ["linux-x86_64-good-fp16"]))
    found = rows(registry(RECIPES_DISABLE="bad,"))
    assert (found["bad"].state, found["bad"].reason) == ("disabled", "switched off by RECIPES_DISABLE=bad,")
    assert found["good"].state == "ok"
    found = rows(registry(RECIPES_ONLY="good"))
    assert (found["bad"].state, found["bad"].reason) == ("disabled", "switched off by RECIPES_ONLY=good")


@pytest.mark.parametrize("variable", ["RECIPES_DISABLE", "RECIPES_ONLY"])
def test_a_name_that_no_plugin_has_in_the_environment_is_told(
    variable: str, installed_plugin: Install, registry: Callable[..., Registry]
) -> None:
    installed_plugin("good", plugin_source("good"))
    with pytest.warns(RecipesWarning, match=f"{variable} names 'goood'.*Did you mean 'good'"):
        registry(**{variable: "goood"}).list_plugins()


def test_one_plugin_name_from_two_distributions_is_used_from_neither(
    installed_plugin: Install, registry: Callable[..., Registry]
) -> None:
    source = plugin_source("acme", ["linux-x86_64-acme-fp16"])
    installed_plugin("acme", source)
    installed_plugin("acme", source, distribution="stranger", module="stranger")
    scanned = registry()
    with pytest.warns(RecipesWarning):
        found = scanned.list_plugins()
    assert [(row.distribution, row.state) for row in found] == [("recipes-acme", "conflict"), ("stranger", "conflict")]
    assert all("recipes-acme 1.0 and stranger 1.0" in row.reason for row in found)
    assert scanned.list_targets(include_unavailable=True) == []
    with pytest.raises(PluginError, match=r"stranger 1\.0"):
        scanned.get_target("linux-x86_64-acme-fp16")


def test_a_backend_declared_twice_is_used_from_neither_and_the_rest_of_both_works(
    installed_plugin: Install, registry: Callable[..., Registry]
) -> None:
    installed_plugin("acme", plugin_source("acme", ["linux-x86_64-acme-fp16"]))
    installed_plugin("rival", plugin_source("acme", ["linux-x86_64-rival-fp16"]))
    installed_plugin("good", plugin_source("good", ["linux-x86_64-good-fp16"]))
    scanned = registry()
    found = rows(scanned)
    assert {name: row.state for name, row in found.items()} == {"acme": "conflict", "good": "ok", "rival": "conflict"}
    assert "recipes-acme 1.0" in found["rival"].reason
    assert "recipes-rival 1.0" in found["rival"].reason
    assert [str(target) for target in scanned.list_targets()] == ["linux-x86_64-good-fp16"]
    blocked = {str(target): target for target in scanned.list_targets(include_unavailable=True)}
    assert "recipes-rival 1.0" in blocked["linux-x86_64-acme-fp16"].reason
    with pytest.raises(PluginError, match=r"recipes-acme 1.0.*recipes-rival 1.0"):
        scanned.get_recipe("acme:fp16")


def test_a_target_declared_twice_is_used_from_neither_and_the_rest_of_both_works(
    installed_plugin: Install, registry: Callable[..., Registry]
) -> None:
    shared = "linux-x86_64-shared-fp16"
    installed_plugin("acme", plugin_source("acme", [shared, "linux-x86_64-acme-fp16"]))
    installed_plugin("rival", plugin_source("rival", [shared, "linux-x86_64-rival-fp16"]))
    scanned = registry()
    assert {row.state for row in rows(scanned).values()} == {"conflict"}
    assert [str(t) for t in scanned.list_targets()] == ["linux-x86_64-acme-fp16", "linux-x86_64-rival-fp16"]
    assert scanned.get_target(shared).state == "unavailable"
    assert "recipes-acme 1.0" in scanned.get_target(shared).reason
    assert "recipes-rival 1.0" in scanned.get_target(shared).reason


@pytest.mark.parametrize(
    ("requirement", "parts"),
    [("recipes-core>=99", ("recipes-core>=99", "recipes-core 0.")), ("Recipes_Core<0.0.1", ("recipes-core<0.0.1",))],
)
def test_a_plugin_for_another_core_is_incompatible_and_never_imported(
    requirement: str, parts: tuple[str, ...], installed_plugin: Install, registry: Callable[..., Registry]
) -> None:
    installed_plugin("old", "raise RuntimeError('imported')", requires=[requirement])
    row = rows(registry())["old"]
    assert (row.state, row.error) == ("incompatible", None)
    for part in parts:
        assert part in row.reason


def test_a_requirement_that_holds_only_elsewhere_or_for_an_extra_is_not_held_against_a_plugin(
    installed_plugin: Install, registry: Callable[..., Registry]
) -> None:
    installed_plugin(
        "good",
        plugin_source("good"),
        requires=["recipes-core>=99; sys_platform == 'plan9'", "recipes-core>=99; extra == 'x'", "recipes-core>=0.1"],
    )
    assert rows(registry())["good"].state == "ok"


def test_a_component_without_a_recipe_is_told_in_the_row_and_in_the_target(
    installed_plugin: Install, registry: Callable[..., Registry]
) -> None:
    components = '(Component("acme:fp61"),)'
    installed_plugin("acme", plugin_source("acme", ["linux-x86_64-acme-fp16"], components=components))
    scanned = registry()
    row = rows(scanned)["acme"]
    assert row.state == "broken"
    assert "'acme:fp61'" in row.reason
    assert "Did you mean 'acme:fp16'" in row.reason
    assert scanned.get_target("linux-x86_64-acme-fp16").state == "unavailable"
    assert [recipe.id for recipe in scanned.list_recipes()] == ["acme:fp16", "acme:int8"]


def test_a_provider_is_asked_once_so_that_one_that_fails_later_loses_nobody_s_listing(
    installed_plugin: Install, registry: Callable[..., Registry]
) -> None:
    source = plugin_source("acme", ["linux-x86_64-acme-fp16"])
    flaky = (
        "recipes = iter([[*Kind]])\n\n        def get_supported_recipes(self):\n            return next(self.recipes)"
    )
    flaky = source.replace("def get_supported_recipes(self):\n            return list(Kind)", flaky)
    assert flaky != source
    installed_plugin("acme", flaky)
    installed_plugin("good", plugin_source("good", ["linux-x86_64-good-fp16"]))
    scanned = registry()
    assert [str(target) for target in scanned.list_targets()] == ["linux-x86_64-acme-fp16", "linux-x86_64-good-fp16"]
    assert [r.id for r in scanned.list_recipes()] == ["acme:fp16", "acme:int8", "good:fp16", "good:int8"]
    with pytest.raises(UnknownRecipeError, match="Did you mean 'good:fp16'"):
        scanned.get_recipe("good:fp61")


def test_an_option_that_is_no_option_is_the_fault_of_the_plugin_that_describes_it(
    installed_plugin: Install, registry: Callable[..., Registry]
) -> None:
    source = plugin_source("acme").replace(
        'Option("level", "int", "How hard to try.", default=1, minimum=0, maximum=3)', "'level'"
    )
    installed_plugin("acme", source)
    row = rows(registry())["acme"]
    assert row.state == "broken"
    assert "has the option 'level', which is not a recipes.Option" in row.reason


@pytest.mark.parametrize(
    ("availability", "state", "reason"),
    [
        (
            "Availability(False)",
            "unavailable",
            "acme:fp16: the plugin 'acme' (recipes-acme 1.0) reports that it cannot lower here, without a reason",
        ),
        ("Availability(True, 'slow here')", "ready", ""),
    ],
)
def test_whether_a_backend_is_available_is_what_it_says_and_not_whether_it_gives_a_reason(
    availability: str, state: str, reason: str, installed_plugin: Install, registry: Callable[..., Registry]
) -> None:
    source = plugin_source("acme", ["linux-x86_64-acme-fp16"]).replace("Availability(True)", availability)
    installed_plugin("acme", source)
    target = registry().get_target("linux-x86_64-acme-fp16")
    assert (target.state, target.reason) == (state, reason)


def test_refresh_finds_what_was_installed_since_and_forgets_what_was_removed(
    installed_plugin: Install, plugin_site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(plugin_site))
    monkeypatch.setenv("RECIPES_ONLY", "")
    scanned = Registry()
    before = {row.name for row in scanned.list_plugins()}
    info = installed_plugin("late", plugin_source("late", ["linux-x86_64-late-fp16"]))
    assert {row.name for row in scanned.list_plugins()} == before
    scanned.refresh()
    assert {row.name for row in scanned.list_plugins()} == before | {"late"}
    for file in info.iterdir():
        file.unlink()
    info.rmdir()
    scanned.refresh()
    assert {row.name for row in scanned.list_plugins()} == before


def test_order_of_installation_means_nothing(installed_plugin: Install, registry: Callable[..., Registry]) -> None:
    for name in ("zulu", "alpha", "mike"):
        installed_plugin(name, plugin_source(name, [f"linux-x86_64-{name}-fp16"]))
    scanned = registry()
    assert [row.name for row in scanned.list_plugins()] == ["alpha", "mike", "zulu"]
    assert [str(target) for target in scanned.list_targets()] == sorted(map(str, scanned.list_targets()))


def test_no_plugin_at_all_lists_nothing_and_says_what_to_install() -> None:
    with pytest.warns(RecipesWarning, match=r"No plugin is installed.*pip install recipes-"):
        assert Registry([], {}).list_targets() == []
    with pytest.raises(UnknownTargetError, match=r"provided by recipes-acme: pip install recipes-acme"):
        Registry([], {}).get_target("linux-x86_64-acme-fp16")
    with pytest.raises(UnknownRecipeError, match="pip install recipes-acme"):
        Registry([], {}).get_recipe("acme:fp16")


def test_listing_in_a_fresh_interpreter_imports_nothing_heavy(installed_plugin: Install, plugin_site: Path) -> None:
    installed_plugin("acme", plugin_source("acme", ["linux-x86_64-acme-fp16"]))
    code = textwrap.dedent("""
        import json, sys
        import recipes
        names = [str(target) for target in recipes.list_targets()]
        recipes.list_plugins(); recipes.list_recipes()
        heavy = {"torch", "executorch", "torchao", "coremltools", "numpy", "click", "rich"} & set(sys.modules)
        print(json.dumps({"names": names, "heavy": sorted(heavy)}))
    """)
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, "PYTHONPATH": str(plugin_site), "RECIPES_ONLY": "acme"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(run.stdout) == {"names": ["linux-x86_64-acme-fp16"], "heavy": []}
