"""The command line's listing, showing, wrong uses and exit codes; nothing here imports torch."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import importlib_metadata
import pytest
from click.testing import CliRunner, Result

from recipes import RecipesWarning, Registry
from recipes.cli import exporting, load, progress, quiet
from recipes.cli.app import cli

if TYPE_CHECKING:
    from recipes import ExportRecipe

ACME = """
    from recipes import Availability, Component, Option, RecipeInfo, RecipeProvider, RecipeType, TargetProfile, hookimpl

    class AcmeRecipeType(RecipeType):
        FP16 = "acme_fp16"
        INT8 = "acme_int8"

        @classmethod
        def get_backend_name(cls):
            return "acme"

    OPTIONS = (
        Option("unit", "str", "Which unit runs it [see the manual].", default="ALL", choices=("ALL", "CPU", "NPU")),
        Option("cores", "int", "How many cores.", minimum=1),
    )

    class Acme(RecipeProvider):
        backend_name = "acme"

        def get_supported_recipes(self):
            return list(AcmeRecipeType)

        def describe(self, recipe_type):
            quantizes = recipe_type is AcmeRecipeType.INT8
            precision = "int8" if quantizes else "float16"
            return RecipeInfo("For Acme's chips.", precision, precision, quantizes, OPTIONS, "OS4")

        def availability(self):
            return Availability(True)

        def build_recipe(self, recipe_type, options):
            raise RuntimeError("the factory broke")

    @hookimpl
    def recipes_register_providers():
        return [Acme()]

    @hookimpl
    def recipes_register_targets():
        return [
            TargetProfile("ios-arm64-acme-fp16", (Component("acme:fp16", options={"cores": 2}),), "Phones", True),
            TargetProfile(
                "ios-arm64-acme-int8",
                (Component("acme:int8"), Component("extra:fp32", role="fallback", required=False)),
                "Phones, small",
            ),
            TargetProfile("android-arm64-gone-fp32", (Component("gone:fp32"),), "Needs [another] plugin"),
        ]
"""

BROKEN = """
    raise ValueError("no licence")
"""

TARGET = "ios-arm64-acme-fp16"


@pytest.fixture
def registry(plugin_site: Path, installed_plugin: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A registry with the plugin acme alone."""
    monkeypatch.setattr(sys, "path", [str(plugin_site), *sys.path])
    installed_plugin("acme", ACME)
    return site_registry(plugin_site)


def site_registry(site: Path) -> Registry:
    entry_points = [e for d in importlib_metadata.distributions(path=[str(site)]) for e in d.entry_points]
    return Registry(entry_points, environ={})


@pytest.fixture
def run(registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """Run the command line in `tmp_path` with the plugin acme."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RECIPES_DEBUG", raising=False)
    return lambda *words, **more: CliRunner().invoke(cli, words, **{"obj": registry, **more})


def run_fresh(site: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `recipes` in an interpreter of its own, with the plugins in `site` as well."""
    return run_python(
        site, "import sys; from recipes.cli import main; sys.argv[0] = 'recipes'; main()", *words, **environ
    )


def run_python(site: Path, program: str, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(site), "RECIPES_ONLY": "acme", **environ},
    )


# Listing


def test_targets_are_listed_with_state_and_components_in_order(run: Callable[..., Result]) -> None:
    result = run("targets")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [TARGET, "ready", "acme:fp16"] in lines
    assert ["ios-arm64-acme-int8", "degraded", "acme:int8,", "extra:fp32", "(missing)"] in lines
    assert "pip install recipes-extra" in result.stdout
    assert "android-arm64-gone-fp32" not in result.stdout
    assert "1 more is known but unavailable here: recipes targets --all" in result.stdout


def test_all_also_lists_unavailable_targets_with_reason_and_hint(run: Callable[..., Result]) -> None:
    result = run("targets", "--all")
    assert "android-arm64-gone-fp32" in result.stdout
    assert "gone:fp32: recipes-gone is not installed" in result.stdout
    assert "pip install recipes-gone" in result.stdout


def test_os_keeps_only_its_targets(run: Callable[..., Result]) -> None:
    result = run("targets", "--os", "Android", "--all")
    assert result.exit_code == 0
    assert "android-arm64-gone-fp32" in result.stdout
    assert TARGET not in result.stdout


def test_an_unknown_os_is_wrong_use_and_names_the_nearest(run: Callable[..., Result]) -> None:
    result = run("targets", "--os", "andriod")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Did you mean 'android'?" in result.stderr
    assert "Systems here: android, ios." in result.stderr


def test_an_os_whose_targets_are_all_unavailable_says_so(run: Callable[..., Result]) -> None:
    result = run("targets", "--os", "android")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == "This host can build for no target with the installed plugins."
    assert "recipes targets --all" in result.stdout


def test_targets_as_json_have_the_documented_keys(run: Callable[..., Result]) -> None:
    result = run("targets", "--all", "--json")
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert list(rows) == ["android-arm64-gone-fp32", TARGET, "ios-arm64-acme-int8"]
    help_text = run("targets", "--help").stdout
    for key in {*rows[TARGET], *rows[TARGET]["components"][0]}:
        assert key in help_text
    assert rows[TARGET] == {
        "name": TARGET,
        "os": "ios",
        "arch": "arm64",
        "accelerator": "acme",
        "precision": "fp16",
        "state": "ready",
        "summary": "Phones",
        "default": True,
        "plugin": "acme",
        "reason": "",
        "hint": "",
        "components": [
            {
                "recipe": "acme:fp16",
                "role": "accelerator",
                "required": True,
                "plugin": "acme",
                "available": True,
                "reason": "",
                "hint": "",
            }
        ],
    }
    assert rows["android-arm64-gone-fp32"]["hint"] == "pip install recipes-gone"


def test_json_is_alone_on_stdout_even_with_a_warning(plugin_site: Path, installed_plugin: Callable[..., Path]) -> None:
    installed_plugin("acme", ACME)
    installed_plugin("bad", BROKEN)
    result = run_fresh(plugin_site, "targets", "--json", RECIPES_ONLY="acme,bad")
    assert [row["name"] for row in json.loads(result.stdout)] == [TARGET, "ios-arm64-acme-int8"]
    (line,) = result.stderr.splitlines()
    assert line.startswith("warning: The plugin 'bad' (recipes-bad 1.0) is broken: ValueError: no licence")


def test_no_plugins_at_all_is_one_warning_that_says_what_to_install(run: Callable[..., Result]) -> None:
    result = run("targets", obj=Registry([], environ={}))
    assert result.exit_code == 0
    (line,) = result.stderr.splitlines()
    assert line.startswith("warning: No plugin is installed")
    assert "pip install recipes-" in line


def test_plugins_are_listed_whatever_their_state(
    run: Callable[..., Result], plugin_site: Path, installed_plugin: Callable[..., Path]
) -> None:
    installed_plugin("bad", BROKEN, version="2.1")
    result = run("plugins", obj=site_registry(plugin_site))
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["acme", "ok", "recipes-acme", "1.0", "acme", "3"] in lines
    assert ["bad", "broken", "recipes-bad", "2.1", "0"] in lines
    assert "ValueError: no licence" in result.stdout


def test_plugins_as_json_have_the_documented_keys(run: Callable[..., Result]) -> None:
    (row,) = json.loads(run("plugins", "--json").stdout)
    help_text = run("plugins", "--help").stdout
    assert all(key in help_text for key in row)
    assert (row["name"], row["state"], row["distribution"], row["version"]) == ("acme", "ok", "recipes-acme", "1.0")
    assert row["backends"] == [{"name": "acme", "available": True, "reason": "", "hint": ""}]
    assert row["targets"] == ["android-arm64-gone-fp32", TARGET, "ios-arm64-acme-int8"]


def test_plugins_without_any_says_what_to_install(run: Callable[..., Result]) -> None:
    result = run("plugins", obj=Registry([], environ={}))
    assert result.exit_code == 0
    assert "pip install recipes-" in result.stdout


# Showing


def test_show_prints_what_each_component_is_and_takes(run: Callable[..., Result]) -> None:
    result = run("show", TARGET)
    assert result.exit_code == 0
    for words in (
        f"{TARGET}  ready",
        "1. acme:fp16  accelerator, required",
        "weights float16, activations float16",
        "needs no calibration; runs on OS4 and later",
        "unit = ALL  (default)",
        "Which unit runs it [see the manual].",
        "one of ALL, CPU, NPU; default ALL",
        "cores = 2  (target)",
    ):
        assert words in result.stdout


def test_show_resolves_given_options_for_all_and_for_one_backend(run: Callable[..., Result]) -> None:
    result = run("show", TARGET, "-O", "unit=NPU", "-O", "acme.cores=3", "--json")
    (component,) = json.loads(result.stdout)["components"]
    values = {option["name"]: (option["value"], option["source"]) for option in component["options"]}
    assert values == {"unit": ("NPU", "given"), "cores": (3, "given")}
    help_text = run("show", "--help").stdout
    assert all(
        key in help_text
        for key in {*component, *component["options"][0]}
        - {"recipe", "role", "plugin"}
        - {"available", "reason", "hint"}
    )


def test_show_explains_what_is_missing_from_a_degraded_target(run: Callable[..., Result]) -> None:
    result = run("show", "ios-arm64-acme-int8")
    assert result.exit_code == 0
    assert "needs calibration inputs" in result.stdout
    assert "2. extra:fp32  fallback, optional" in result.stdout
    assert "-> pip install recipes-extra" in result.stdout


def test_show_of_an_unavailable_target_is_a_page_but_options_for_it_are_wrong_use(run: Callable[..., Result]) -> None:
    page = run("show", "android-arm64-gone-fp32")
    assert page.exit_code == 0
    assert "not available: recipes-gone is not installed" in page.stdout
    refused = run("show", "android-arm64-gone-fp32", "-O", "unit=NPU")
    assert refused.exit_code == 2
    assert "pip install recipes-gone" in refused.stderr


def test_explain_and_json_exclude_each_other(run: Callable[..., Result]) -> None:
    result = run("show", TARGET, "--explain", "--json")
    assert result.exit_code == 2
    assert result.stdout == ""


# Wrong uses


@pytest.mark.parametrize("command", [("show",), ("export", "m:f", "-o", "x.pte", "--target")])
def test_an_unknown_target_names_the_nearest(run: Callable[..., Result], command: tuple[str, ...]) -> None:
    result = run(*command, "ios-arm64-acme-fp61")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: No installed plugin declares the target 'ios-arm64-acme-fp61'.")
    assert f"'{TARGET}'" in result.stderr.splitlines()[0]
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", [("show", TARGET), ("export", "m:f", "-o", "x.pte", "--target", TARGET)])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("untit=CPU", "Did you mean 'unit'?"),
        ("unit=GPU", "Option 'unit' must be one of ALL, CPU, NPU; got 'GPU'"),
        ("cores=0", "a whole number, at least 1"),
        ("NPU=unit", "Name and value look swapped: -O unit=NPU"),
        ("unit", "-O unit: write an option as name=value or backend.name=value."),
        ("=NPU", "-O =NPU: write an option as"),
        ("acme.=NPU", "-O acme.=NPU: write an option as"),
        ("acme.unit.x=NPU", "-O acme.unit.x=NPU: write an option as"),
        ("unit: NPU", "-O unit: NPU: write an option as"),
        ("acem.unit=NPU", "Did you mean 'acme'?"),
        ("acme.untit=NPU", "Did you mean 'unit'?"),
        ("acme=NPU", "must be a mapping"),
    ],
)
def test_a_bad_option_is_wrong_use_before_any_work(
    run: Callable[..., Result], command: tuple[str, ...], given: str, words: str
) -> None:
    result = run(*command, "-O", given)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    "given", [("unit=CPU", "unit=NPU"), ("acme.unit=CPU", "acme.unit=NPU"), ("acme=1", "acme.unit=CPU")]
)
def test_an_option_given_twice_is_wrong_use(run: Callable[..., Result], given: tuple[str, str]) -> None:
    result = run("show", TARGET, "-O", given[0], "-O", given[1])
    assert result.exit_code == 2
    assert "more than once" in result.stderr


def test_an_equals_sign_in_a_value_belongs_to_the_value(run: Callable[..., Result]) -> None:
    result = run("show", TARGET, "-O", "unit=a=b")
    assert "got 'a=b'" in result.stderr


def test_exporting_for_an_unavailable_target_is_wrong_use_with_the_way_out(run: Callable[..., Result]) -> None:
    result = run("export", "m:f", "-o", "x.pte", "--target", "android-arm64-gone-fp32")
    assert result.exit_code == 2
    assert "is unavailable: gone:fp32: recipes-gone is not installed." in result.stderr
    assert "pip install recipes-gone" in result.stderr


def test_a_target_given_twice_is_wrong_use(run: Callable[..., Result]) -> None:
    result = run("export", "m:f", "-o", "out", "-t", TARGET, "-t", TARGET)
    assert result.exit_code == 2
    assert "is given 2 times" in result.stderr


@pytest.mark.parametrize("missing", ["--target", "-o"])
def test_export_needs_a_target_and_an_output(run: Callable[..., Result], missing: str) -> None:
    words = {"--target": ("-o", "x.pte"), "-o": ("--target", TARGET)}[missing]
    result = run("export", "m:f", *words)
    assert result.exit_code == 2
    assert f"Missing option '{missing if missing == '-o' else '-t'}'" in result.stderr


# OUT

TWO = ("-t", TARGET, "-t", "ios-arm64-acme-int8")


@pytest.mark.parametrize(
    ("targets", "out", "words"),
    [
        (TWO[:2], "missing/x.pte", "the folder 'missing' does not exist"),
        (TWO[:2], "folder", "it is a folder. Give the name of a file."),
        (TWO[:2], "", "it is a folder"),
        (TWO[:2], "file/x.pte", "the folder 'file' does not exist"),
        (TWO[:2], "missing/{target}.pte", "the folder 'missing' does not exist"),
        (TWO, "x.pte", "give a folder, or a file for each with 'x-{target}.pte'"),
        (TWO, "missing/out", "the folder 'missing' does not exist"),
        (TWO, "missing/{target}.pte", "the folder 'missing' does not exist"),
        (TWO, "missing/{target}/x.pte", "the folder 'missing' does not exist"),
        (TWO, "file", "the folder 'file' does not exist"),
    ],
)
def test_an_out_that_cannot_be_is_wrong_use(
    run: Callable[..., Result], tmp_path: Path, targets: tuple[str, ...], out: str, words: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    before = sorted(path.name for path in tmp_path.iterdir())
    result = run("export", "m:f", "-o", out, *targets)
    assert result.exit_code == 2
    assert words in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("targets", "out", "files"),
    [
        (TWO[:2], "x.pte", ["x.pte"]),
        (TWO[:2], "x-{target}.pte", [f"x-{TARGET}.pte"]),
        (TWO, "new", [f"new/{TARGET}.pte", "new/ios-arm64-acme-int8.pte"]),
        (TWO, "folder", [f"folder/{TARGET}.pte", "folder/ios-arm64-acme-int8.pte"]),
        (TWO, "new.d/", [f"new.d/{TARGET}.pte", "new.d/ios-arm64-acme-int8.pte"]),
        (TWO, "folder/x-{target}", [f"folder/x-{TARGET}", "folder/x-ios-arm64-acme-int8"]),
        (TWO, "{target}/x.pte", [f"{TARGET}/x.pte", "ios-arm64-acme-int8/x.pte"]),
    ],
)
def test_out_says_where_each_targets_file_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, targets: tuple[str, ...], out: str, files: list[str]
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    assert exporting.plan_files(targets[1::2], out) == dict(zip(targets[1::2], map(Path, files), strict=True))
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


# MODEL

MODELS = """
def raises():
    raise ValueError("no weights")

def leaves():
    raise SystemExit(3)

def one():
    return 1

def three():
    return 1, 2, 3

def misspelt():
    return {"model": 1, "example_input": 2}

def modelless():
    return {"example_inputs": 2}

def good():
    return 1, (2,)

def full():
    return {"model": 1, "example_inputs": (2,), "dynamic_shapes": None}

class Models:
    @staticmethod
    def nested():
        return 3, (4,)

number = 1
"""


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("models.py", "names a file but no factory in it. Write models.py:factory."),
        ("models", "is not valid. MODEL is package.module:factory"),
        ("models:", "is not valid. MODEL is"),
        (":good", "is not valid: '' is not a module name. MODEL is"),
        ("models.py:", "is not valid. MODEL is"),
        ("model.pte", "is not valid. MODEL is"),
        ("no-such:good", "'no-such' is not a module name"),
        ("absent.py:good", "the file absent.py does not exist"),
        ("absent.pt2", "the file absent.pt2 does not exist"),
        ("folder.pt2", "the file folder.pt2 is a folder"),
        ("corrupt.pt2", "is damaged, or was not written with torch.export.save"),
        ("absent_module:good", "there is no module 'absent_module'"),
        ("models.absent:good", "there is no module 'models.absent'"),
        ("models.py:godo", "models.py has no 'godo'. Did you mean 'good'?"),
        ("models:godo", "models has no 'godo'. Did you mean 'good'?"),
        ("models.py:Models.nestde", "has no 'Models.nestde'. Did you mean 'nested'?"),
        ("models.py:number", "names a int; it must name a function"),
        ("models.py:raises", "the factory raised ValueError: no weights ("),
        ("models.py:leaves", "the factory raised SystemExit: 3"),
        ("models.py:one", "it returned a int"),
        ("models.py:three", "it returned a tuple of 3"),
        ("models.py:misspelt", "the factory returned the key 'example_input'. Did you mean 'example_inputs'?"),
        ("models.py:modelless", "without the key 'model'"),
        ("failing.py:good", "importing it raised ModuleNotFoundError: No module named 'absent_dependency' ("),
        ("failing:good", "importing it raised ModuleNotFoundError: No module named 'absent_dependency' ("),
        ("unreadable.py:good", "importing it raised SyntaxError"),
    ],
)
def test_a_bad_model_is_wrong_use(
    run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, words: str
) -> None:
    write_models(tmp_path)
    forget_models(monkeypatch)
    result = run("export", model, "-o", "x.pte", "-t", TARGET)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "x.pte").exists()


def write_models(folder: Path) -> None:
    (folder / "models.py").write_text(MODELS)
    (folder / "failing.py").write_text("import absent_dependency\n")
    (folder / "unreadable.py").write_text("def good(:\n")
    (folder / "corrupt.pt2").write_bytes(b"PK\x03\x04 and no more")
    (folder / "folder.pt2").mkdir()


def forget_models(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("models", "failing", "recipes_model_models", "recipes_model_failing", "recipes_model_unreadable"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize(
    ("model", "arguments"),
    [
        ("models:good", {"model": 1, "example_inputs": (2,)}),
        ("models.py:good", {"model": 1, "example_inputs": (2,)}),
        ("./models.py:full", {"model": 1, "example_inputs": (2,), "dynamic_shapes": None}),
        ("models.py:Models.nested", {"model": 3, "example_inputs": (4,)}),
    ],
)
def test_a_factory_gives_the_arguments_of_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, arguments: dict[str, object]
) -> None:
    write_models(tmp_path)
    forget_models(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert load.ModelReference.parse(model).load() == arguments


def test_calibration_samples_can_be_gone_through_for_every_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "generators.py").write_text(
        "def one(): return {'model': 1, 'calibration_inputs': iter([(1,), (2,)])}\n"
        "def two(): return {'model': 1, 'calibration_inputs': {'forward': iter([(3,)])}}\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "generators.py"
    assert load.ModelReference.parse(f"{path}:one").load()["calibration_inputs"] == [(1,), (2,)]
    assert load.ModelReference.parse(f"{path}:two").load()["calibration_inputs"] == {"forward": [(3,)]}


def test_a_file_can_import_its_neighbours_and_does_not_hide_a_module_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "neighbour_of_json.py").write_text("VALUE = 5\n")
    (folder / "json.py").write_text("import neighbour_of_json\ndef make(): return neighbour_of_json.VALUE, ()\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert load.ModelReference.parse(f"{folder / 'json.py'}:make").load()["model"] == 5
    assert sys.modules["json"] is json


# Errors, exit codes, noise


class FailingRegistry(Registry):
    """Its recipes cannot be made; says so before anything heavy is imported."""

    def get_target_recipe(self, name: str, /, **options: Any) -> ExportRecipe:
        print("a library's last words")
        raise RuntimeError("the factory broke")


@pytest.fixture
def run_failing(
    run: Callable[..., Result], registry: Registry, plugin_site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    """As `run`, with models in `tmp_path` and a registry that fails once an export has started."""
    write_models(tmp_path)
    forget_models(monkeypatch)
    failing = FailingRegistry(registry._scan.entry_points, environ={})
    return lambda *words: run("export", "models.py:good", *words, obj=failing)


def test_a_failing_export_is_exit_code_1_and_leaves_an_existing_file(
    run_failing: Callable[..., Result], tmp_path: Path
) -> None:
    (tmp_path / "x.pte").write_bytes(b"old")
    result = run_failing("-o", "x.pte", "-t", TARGET)
    assert result.exit_code == 1
    assert "Error: RuntimeError: the factory broke" in result.stderr
    assert "Run again with --debug for the traceback." in result.stderr
    assert "the last output of the libraries:\na library's last words\nError: " in result.stderr
    assert "Traceback" not in result.stderr
    assert (tmp_path / "x.pte").read_bytes() == b"old"


def test_progress_is_a_line_for_each_stage_where_there_is_no_terminal(run_failing: Callable[..., Result]) -> None:
    result = run_failing("-o", "x.pte", "-t", TARGET)
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[0] == "loading models.py:good"
    assert lines[2].startswith(f"{TARGET}: recipe failed after ")


def test_every_failing_target_is_reported_and_counted(run_failing: Callable[..., Result]) -> None:
    result = run_failing("-o", "out", *TWO)
    assert result.exit_code == 1
    for target in (TARGET, "ios-arm64-acme-int8"):
        assert f"Error: {target}: RuntimeError: the factory broke" in result.stderr
    assert f"2 of 2 targets failed: {TARGET}, ios-arm64-acme-int8." in result.stderr


def test_a_live_display_shows_each_target_with_its_stages() -> None:
    screen = Screen()
    with progress.Display([TARGET, "ios-arm64-acme-int8"], screen, live=True) as display:
        with display.stage(TARGET, "torch_export"):
            display.print_line("warning: mind the step")
        with pytest.raises(ValueError, match="no"), display.stage(TARGET, "to_backend"):
            raise ValueError("no")
    shown = screen.getvalue()
    assert "warning: mind the step\n" in shown
    assert "\x1b[" in shown
    assert re.search(rf"{TARGET} .*torch export 0.0 s.*, .*to backend failed after 0.0 s", shown)
    assert re.search(r"ios-arm64-acme-int8 .*waiting", shown)


class Screen(io.StringIO):
    """A terminal, as far as a program can tell."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("words", [("--debug", "export"), ("export", "--debug"), ("export",)])
def test_debug_shows_the_traceback_wherever_it_is_asked_for(
    run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    write_models(tmp_path)
    forget_models(monkeypatch)
    env = {} if "--debug" in words else {"RECIPES_DEBUG": "1"}
    result = run(*words, "models.py:raises", "-o", "x.pte", "-t", TARGET, env=env)
    assert result.exit_code == 2
    assert "Traceback (most recent call last)" in result.stderr
    assert 'raise ValueError("no weights")' in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Error: MODEL 'models.py:raises': the factory raised")


@pytest.mark.parametrize(
    ("raised", "code", "text"),
    [
        (KeyError("lost"), 1, "Error: KeyError: 'lost'\nRun again with --debug for the traceback.\n"),
        (RuntimeError(), 1, "Error: RuntimeError\nRun again with --debug for the traceback.\n"),
        (KeyboardInterrupt(), 130, "Interrupted.\n"),
    ],
)
def test_what_is_raised_unexpectedly_becomes_one_block(
    monkeypatch: pytest.MonkeyPatch, run: Callable[..., Result], raised: BaseException, code: int, text: str
) -> None:
    class Failing(Registry):
        def list_plugins(self) -> list[object]:  # type: ignore[override]
            raise raised

    result = run("plugins", obj=Failing([], environ={}))
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", text)


@pytest.mark.parametrize("debug", [False, True])
def test_a_recipes_warning_is_one_line_and_others_are_hidden_unless_in_debug(
    recwarn: pytest.WarningsRecorder, debug: bool
) -> None:
    lines: list[str] = []
    with quiet.warnings_as_lines(lines.append, lambda: debug):
        warnings.warn("of two\n  lines", RecipesWarning, stacklevel=1)
        warnings.warn("theirs", UserWarning, stacklevel=1)
    assert lines == ["warning: of two lines"]
    assert [str(warning.message) for warning in recwarn] == (["theirs"] if debug else [])


def test_a_filter_that_a_library_left_behind_does_not_hide_our_warnings() -> None:
    lines: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with quiet.warnings_as_lines(lines.append, lambda: False):
            warnings.warn("ours", RecipesWarning, stacklevel=1)
    assert lines == ["warning: ours"]


def test_library_output_is_captured_and_its_tail_shows_redrawn_lines_once(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("some_library")
    with quiet.library_output(debug=False) as captured:
        handler = logging.StreamHandler()
        logger.addHandler(handler)
        print("printed")
        print("\rbar 1\rbar 2", file=sys.stderr)
        logger.warning("chatter")
        logger.error("matters")
        logger.removeHandler(handler)
        assert os.environ["TQDM_DISABLE"] == "1"
    assert quiet.tail(captured).splitlines() == ["printed", "bar 2", "matters"]
    assert capsys.readouterr() == ("", "")


def test_library_output_leaves_logging_and_the_environment_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TQDM_DISABLE", "0")
    with pytest.raises(ValueError, match="theirs"), quiet.library_output(debug=False):
        raise ValueError("theirs")
    assert logging.root.manager.disable == logging.NOTSET
    assert os.environ["TQDM_DISABLE"] == "0"


def test_library_output_is_let_through_in_debug(capsys: pytest.CaptureFixture[str]) -> None:
    with quiet.library_output(debug=True) as captured:
        print("printed")
    assert capsys.readouterr().out == "printed\n"
    assert captured.getvalue() == ""


# In an interpreter of its own


HEAVY = ("torch", "executorch", "torchao", "coremltools", "numpy")


@pytest.mark.parametrize(
    "words",
    [
        ("targets",),
        ("targets", "--json"),
        ("plugins",),
        ("show", TARGET),
        ("--help",),
        ("export", "--help"),
        ("inspect", "--help"),
        ("verify", "--help"),
        ("--version",),
    ],
)
def test_looking_around_imports_nothing_heavy(
    plugin_site: Path, installed_plugin: Callable[..., Path], words: tuple[str, ...]
) -> None:
    installed_plugin("acme", ACME)
    program = f"""
import sys
from recipes.cli.app import cli
try:
    cli(prog_name="recipes")
finally:
    heavy = [name for name in {HEAVY!r} if name in sys.modules]
    rich = "rich" in sys.modules
    print(f"imported: {{heavy}}, rich: {{rich}}", file=sys.stderr)
"""
    result = run_python(plugin_site, program, *words)
    assert result.returncode == 0
    uses_rich = words[0] in ("targets", "plugins", "show") and "--json" not in words
    assert result.stderr.splitlines()[-1] == f"imported: [], rich: {uses_rich}"


def test_wrong_use_of_export_is_found_before_torch_is_imported(
    plugin_site: Path, installed_plugin: Callable[..., Path]
) -> None:
    installed_plugin("acme", ACME)
    program = f"""
import sys
from recipes.cli.app import cli
try:
    cli(prog_name="recipes")
finally:
    print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""
    result = run_python(plugin_site, program, "export", "absent_module:f", "-o", "x.pte", "-t", TARGET)
    assert result.returncode == 2
    assert "there is no module 'absent_module'" in result.stderr
    assert result.stderr.splitlines()[-1] == "[]"


def test_version_is_that_of_the_distribution(plugin_site: Path) -> None:
    result = run_fresh(plugin_site, "--version")
    assert (result.returncode, result.stdout) == (0, f"recipes {importlib_metadata.version('recipes-core')}\n")


def test_the_entry_point_recipes_is_installed() -> None:
    (entry_point,) = importlib_metadata.entry_points(group="console_scripts", name="recipes")
    from recipes.cli import main

    assert entry_point.load() is main


def test_a_target_of_a_plugin_that_is_switched_off_is_wrong_use_and_says_how_to_switch_it_on(
    plugin_site: Path, installed_plugin: Callable[..., Path]
) -> None:
    installed_plugin("acme", ACME)
    result = run_fresh(plugin_site, "show", TARGET, RECIPES_ONLY="", RECIPES_DISABLE="acme")
    assert result.returncode == 2
    assert "Error: The plugin 'acme' (recipes-acme 1.0) is disabled" in result.stderr
    assert "Remove it from RECIPES_DISABLE" in result.stderr


def test_a_broken_plugin_ends_listing_where_strictness_is_asked_for(
    plugin_site: Path, installed_plugin: Callable[..., Path]
) -> None:
    installed_plugin("bad", BROKEN)
    result = run_fresh(plugin_site, "targets", "--json", RECIPES_ONLY="bad", RECIPES_STRICT="1")
    assert (result.returncode, result.stdout) == (2, "")
    assert "The plugin 'bad' (recipes-bad 1.0) is broken at import: ValueError: no licence" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["targets", "show", "plugins", "export", "inspect", "verify"])
def test_every_commands_help_has_an_example(run: Callable[..., Result], command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"  recipes {command}" in result.stdout.partition("Examples:")[2]


def test_a_narrow_terminal_keeps_names_whole_and_lines_in_its_width(
    plugin_site: Path, installed_plugin: Callable[..., Path]
) -> None:
    installed_plugin("acme", ACME)
    for words in (("targets", "--all"), ("plugins",), ("show", TARGET), ("show", "ios-arm64-acme-int8")):
        result = run_fresh(plugin_site, *words, COLUMNS="60")
        assert result.returncode == 0
        assert max(map(len, result.stdout.splitlines())) <= 60
        if words[0] != "plugins":
            assert words[-1].replace("--all", TARGET) in result.stdout


def test_what_is_piped_has_no_colour(plugin_site: Path, installed_plugin: Callable[..., Path]) -> None:
    installed_plugin("acme", ACME)
    result = run_fresh(plugin_site, "targets", "--all")
    assert "\x1b" not in result.stdout + result.stderr


def test_no_color_is_heeded_where_a_terminal_is_claimed(
    plugin_site: Path, installed_plugin: Callable[..., Path]
) -> None:
    installed_plugin("acme", ACME)
    coloured = run_fresh(plugin_site, "targets", FORCE_COLOR="1", NO_COLOR="")
    plain = run_fresh(plugin_site, "targets", FORCE_COLOR="1", NO_COLOR="1")
    assert "\x1b[32m" in coloured.stdout
    assert "\x1b[32m" not in plain.stdout


def test_ctrl_c_is_one_line_and_exit_code_130(
    plugin_site: Path, installed_plugin: Callable[..., Path], tmp_path: Path
) -> None:
    installed_plugin("acme", ACME)
    (tmp_path / "slow.py").write_text("import time\ndef make():\n    print('here', flush=True)\n    time.sleep(60)\n")
    (tmp_path / "x.pte").write_bytes(b"old")
    program = "from recipes.cli import main; main()"
    words = ["export", "slow.py:make", "-o", "x.pte", "-t", TARGET]
    with subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(plugin_site), "RECIPES_ONLY": "acme"},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout) == (130, "")
    assert stderr.splitlines() == ["loading slow.py:make", "Interrupted."]
    assert (tmp_path / "x.pte").read_bytes() == b"old"
