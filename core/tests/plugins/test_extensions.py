"""Target extensions: a vendor's component in targets that other plugins own."""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import importlib_metadata
import pytest
from click.testing import CliRunner

from recipes import RecipesWarning, Registry
from recipes.cli.app import cli

Install = Callable[..., Path]

MODULE = """
from recipes import Availability, Component, Option, RecipeInfo, RecipeProvider, RecipeType, TargetExtension
from recipes import TargetProfile, hookimpl

def provider(backend, availability=Availability(True)):
    class Kind(RecipeType):
        FP32 = "fp32"
        INT8 = "int8"

        @classmethod
        def get_backend_name(cls):
            return backend

    class Provider(RecipeProvider):
        backend_name = backend

        def get_supported_recipes(self):
            return list(Kind)

        def describe(self, recipe_type):
            return RecipeInfo("...", "float32", "float32", options=(Option("level", "int", "How hard.", default=1),))

        def availability(self):
            return availability

        def build_recipe(self, recipe_type, options):
            raise AssertionError("listing must not build")

    return Provider()

@hookimpl
def recipes_register_providers():
    return [{providers}]

@hookimpl
def recipes_register_targets():
    return [{targets}]
"""

MIXED, PLAIN, OTHER = "ios-arm64-chip-fp32", "ios-arm64-chip-int8", "linux-x86_64-chip-fp32"
OWNER = MODULE.format(
    providers="provider('chip'), provider('cpu')",
    targets=f"""
        TargetProfile('{MIXED}', (Component('chip:fp32'), Component('cpu:fp32', 'fallback', required=False))),
        TargetProfile('{PLAIN}', (Component('chip:int8'),)),
        TargetProfile('{OTHER}', (Component('chip:fp32'), Component('cpu:fp32', 'fallback', required=False))),
    """,
)


def joining(
    backend: str,
    before: str = "",
    *,
    role: str = "fallback",
    targets: str = "ios-arm64-*",
    recipe: str = "",
    availability: str = "",
    required: bool = False,
    own: str = "",
) -> str:
    """The module of a vendor's plugin that joins targets; `own` is a target that it declares itself."""
    component = f"Component({recipe or f'{backend}:fp32'!r}, {role!r}, required={required}, options={{'level': 2}})"
    extension = f"TargetExtension({targets!r}, {component}, {before!r})"
    profile = f", TargetProfile({own!r}, (Component('{backend}:int8'),))" if own else ""
    return MODULE.format(providers=f"provider({backend!r}, {availability})", targets=extension + profile)


@pytest.fixture
def registry(plugin_site: Path, installed_plugin: Install, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry]:
    """Install the owner's and vendors' plugins, in the order given, and make a registry of them."""
    monkeypatch.syspath_prepend(str(plugin_site))

    def make(vendors: dict[str, str], order: Sequence[str] | None = None) -> Registry:
        modules = {"owner": OWNER, **vendors}
        for name in order or modules:
            installed_plugin(name, modules[name])
        found = {d.name: d for d in importlib_metadata.distributions(path=[str(plugin_site)])}
        entry_points = [e for name in order or modules for e in found[f"recipes-{name}"].entry_points]
        return Registry(entry_points, {})

    return make


def order_of(registry: Registry, target: str) -> list[str]:
    return [slot.component.recipe for slot in registry.get_target(target).components]


def run(registry: Registry, *words: str) -> str:
    result = CliRunner().invoke(cli, words, obj=registry, env={"COLUMNS": "150"})
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(
    ("before", "order"),
    [("", ["chip:fp32", "cpu:fp32", "acme:fp32"]), ("cpu", ["chip:fp32", "acme:fp32", "cpu:fp32"])],
)
def test_a_vendor_joins_as_a_fallback_after_the_owner_s_or_before_it_and_show_tells_the_order(
    before: str, order: list[str], registry: Callable[..., Registry]
) -> None:
    scanned = registry({"acme": joining("acme", before)})
    assert order_of(scanned, MIXED) == order
    assert scanned.get_target(MIXED).state == "ready"
    page = run(scanned, "show", MIXED)
    lines = [line for line in page.splitlines() if line[:1].isdigit()]
    assert [line.split()[1] for line in lines] == order
    acme = order.index("acme:fp32")
    assert lines[acme] == f"{acme + 1}. acme:fp32  fallback, optional, added by plugin acme"
    components = json.loads(run(scanned, "show", MIXED, "--json"))["components"]
    assert [(c["recipe"], c["plugin"]) for c in components] == [
        (recipe, "acme" if recipe == "acme:fp32" else "owner") for recipe in order
    ]
    assert ", ".join(order) in run(scanned, "targets")
    # Where there is nothing to be before, it comes after the accelerators; what does not match stays as it is.
    assert order_of(scanned, PLAIN) == ["chip:int8", "acme:fp32"]
    assert order_of(scanned, OTHER) == ["chip:fp32", "cpu:fp32"]


@pytest.mark.parametrize("before", ["", "cpu"])
def test_the_order_is_by_name_whatever_the_order_of_installation(
    before: str, installed_plugin: Install, plugin_site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(plugin_site))
    modules = {"owner": OWNER, **{name: joining(name, before) for name in ("zulu", "alpha", "mike")}}
    for name, module in modules.items():
        installed_plugin(name, module)
    entry_points = [e for d in importlib_metadata.distributions(path=[str(plugin_site)]) for e in d.entry_points]
    vendors = ["alpha:fp32", "mike:fp32", "zulu:fp32"]
    expected = ["chip:fp32", *vendors, "cpu:fp32"] if before else ["chip:fp32", "cpu:fp32", *vendors]
    for permuted in itertools.permutations(entry_points):
        assert order_of(Registry(permuted, {}), MIXED) == expected


@pytest.mark.parametrize("order", [("owner", "zulu", "alpha"), ("alpha", "zulu", "owner")])
def test_two_vendors_sort_by_name_in_whatever_order_they_were_installed(
    order: tuple[str, ...], registry: Callable[..., Registry]
) -> None:
    scanned = registry({"alpha": joining("alpha"), "zulu": joining("zulu")}, order)
    assert order_of(scanned, MIXED) == ["chip:fp32", "cpu:fp32", "alpha:fp32", "zulu:fp32"]


def test_one_can_go_before_another_vendor_s_whatever_their_names(registry: Callable[..., Registry]) -> None:
    scanned = registry(
        {"alpha": joining("alpha", "zulu"), "mike": joining("mike", "alpha"), "zulu": joining("zulu", "cpu")}
    )
    assert order_of(scanned, MIXED) == ["chip:fp32", "mike:fp32", "alpha:fp32", "zulu:fp32", "cpu:fp32"]


def test_two_that_each_want_to_be_first_are_ordered_all_the_same(registry: Callable[..., Registry]) -> None:
    scanned = registry({"alpha": joining("alpha", "zulu"), "zulu": joining("zulu", "alpha")})
    assert order_of(scanned, MIXED) == ["chip:fp32", "cpu:fp32", "zulu:fp32", "alpha:fp32"]


@pytest.mark.parametrize(
    ("before", "order"),
    [("", ["chip:fp32", "acme:fp32", "cpu:fp32"]), ("chip", ["acme:fp32", "chip:fp32", "cpu:fp32"])],
)
def test_an_accelerator_joins_accelerators_and_stays_in_front_of_fallbacks(
    before: str, order: list[str], registry: Callable[..., Registry]
) -> None:
    assert order_of(registry({"acme": joining("acme", before, role="accelerator")}), MIXED) == order


def test_one_whose_backend_does_not_work_here_leaves_the_target_degraded_with_the_reason_and_what_mends_it(
    registry: Callable[..., Registry],
) -> None:
    off = "Availability(False, 'acme_sdk is not installed', 'pip install acme-sdk')"
    scanned = registry({"acme": joining("acme", availability=off)})
    target = scanned.get_target(MIXED)
    assert (target.state, target.hint) == ("degraded", "pip install acme-sdk")
    assert target.reason == "acme:fp32: acme_sdk is not installed"
    assert [component.recipe for component in target.active] == ["chip:fp32", "cpu:fp32"]
    assert MIXED in [t.name for t in scanned.list_targets()]
    assert "chip:fp32, cpu:fp32, acme:fp32 (missing)" in run(scanned, "targets")
    assert scanned.get_target(OTHER).state == "ready"


def test_one_whose_plugin_is_not_installed_leaves_the_target_degraded(registry: Callable[..., Registry]) -> None:
    target = registry({"acme": joining("acme", recipe="gone:fp32")}).get_target(MIXED)
    assert (target.state, target.reason) == ("degraded", "gone:fp32: recipes-gone is not installed")
    assert target.hint == "pip install recipes-gone"


def test_one_that_names_a_recipe_that_does_not_exist_is_the_fault_of_its_plugin_alone(
    registry: Callable[..., Registry],
) -> None:
    scanned = registry({"acme": joining("acme", recipe="acme:fp61")})
    with pytest.warns(RecipesWarning, match="Did you mean 'acme:fp32'"):
        rows = {row.name: row for row in scanned.list_plugins()}
    assert (rows["acme"].state, rows["owner"].state) == ("broken", "ok")
    assert order_of(scanned, MIXED) == ["chip:fp32", "cpu:fp32"]
    assert scanned.get_target(MIXED).state == "ready"


def test_one_that_the_target_would_depend_on_is_refused(registry: Callable[..., Registry]) -> None:
    scanned = registry({"acme": joining("acme", required=True)})
    with pytest.warns(RecipesWarning, match="cannot make another's target depend on it"):
        states = {row.name: row.state for row in scanned.list_plugins()}
    assert states == {"acme": "broken", "owner": "ok"}
    assert scanned.get_target(MIXED).state == "ready"


def test_a_pattern_that_also_fits_the_vendor_s_own_targets_leaves_them_as_declared(
    registry: Callable[..., Registry],
) -> None:
    scanned = registry({"acme": joining("acme", own="ios-arm64-acme-int8")})
    assert order_of(scanned, "ios-arm64-acme-int8") == ["acme:int8"]
    assert order_of(scanned, PLAIN) == ["chip:int8", "acme:fp32"]


def test_a_recipe_that_is_there_already_is_not_there_twice(registry: Callable[..., Registry]) -> None:
    scanned = registry({"acme": joining("acme", recipe="cpu:fp32"), "rival": joining("rival", recipe="cpu:fp32")})
    assert order_of(scanned, MIXED) == ["chip:fp32", "cpu:fp32"]
    assert order_of(scanned, PLAIN) == ["chip:int8", "cpu:fp32"]
    assert [slot.plugin for slot in scanned.get_target(PLAIN).components] == ["owner", "acme"]


def test_the_options_that_an_extension_sets_hold_for_it_alone_and_can_be_given(
    registry: Callable[..., Registry],
) -> None:
    scanned = registry({"acme": joining("acme")})

    def levels(*words: str) -> list[tuple[Any, str]]:
        components = json.loads(run(scanned, "show", MIXED, "--json", *words))["components"]
        return [(option["value"], option["source"]) for c in components for option in c["options"]]

    assert levels() == [(1, "default"), (1, "default"), (2, "target")]
    assert levels("-O", "acme.level=3") == [(1, "default"), (1, "default"), (3, "given")]


def test_a_vendor_that_is_switched_off_leaves_no_trace(
    installed_plugin: Install, plugin_site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(plugin_site))
    installed_plugin("owner", OWNER)
    installed_plugin("acme", joining("acme", availability="Availability(False, 'off')"))
    entry_points = [e for d in importlib_metadata.distributions(path=[str(plugin_site)]) for e in d.entry_points]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scanned = Registry(entry_points, {"RECIPES_DISABLE": "acme"})
        assert order_of(scanned, MIXED) == ["chip:fp32", "cpu:fp32"]
    assert scanned.get_target(MIXED).state == "ready"
