"""The conformance kit: it passes on a good plugin, and for each defect the one test that is there for it fails."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

# Without torch: what it makes is no recipe of ExecuTorch's, so the tests of the kit that export are not run on it.
GOOD = """
import importlib.util
from recipes import Availability, Component, Option, RecipeInfo, RecipeProvider, RecipeType, TargetProfile, hookimpl


class Kind(RecipeType):
    FP16 = "NAME_fp16"
    INT8 = "NAME_int8"

    @classmethod
    def get_backend_name(cls):
        return "NAME"


LEVEL = Option("level", "int", "How hard to try.", default=1, minimum=0, maximum=3)
TILES = Option("tiles", "ints", "Rows and columns of a tile.", required=True, minimum=1)
MODE = Option("mode", "str", "What to save.", default="time", choices=("time", "space"))


class Provider(RecipeProvider):
    backend_name = "NAME"

    def get_supported_recipes(self):
        return list(Kind)

    def describe(self, recipe_type):
        options = (LEVEL, TILES) if recipe_type is Kind.INT8 else (LEVEL, MODE)
        return RecipeInfo("Half precision.", "float16", "float16", options=options)

    def availability(self):
        return Availability.of_host(modules={"NAME_sdk": "NAME-sdk"})

    def settle_options(self, recipe_type, options):
        return dict(options)

    def build_recipe(self, recipe_type, options):
        import NAME_sdk

        return NAME_sdk.Recipe(recipe_type.value, [{name: option.value for name, option in options.items()}])


@hookimpl
def recipes_register_providers():
    return [Provider()]


REST = Component("other:fp32", role="fallback", required=False)


@hookimpl
def recipes_register_targets():
    return [
        TargetProfile("linux-x86_64-NAME-fp16", (Component("NAME:fp16"), REST), "Boards"),
        TargetProfile("linux-x86_64-NAME-int8", (Component("NAME:int8", options={"tiles": [2, 2]}),), "Boards: int8"),
    ]
"""
SDK = """
class Recipe:
    def __init__(self, name, settings):
        self.name, self.settings = name, settings
"""
REQUIRES = ("recipes-core~=0.1", "executorch>=1.5,<1.6")
TESTS = """
class Test_NAME(PluginConformance):
    plugin = "NAME"
    toolchain = ("NAME_sdk",)

    def options_for(self, recipe_type):
        return {"tiles": [4, 4]} if recipe_type.name == "INT8" else {}
"""


@dataclass(frozen=True)
class Defect:
    """What is wrong with a plugin, and what the kit must say of it.

    Args:
        fails: The tests of the kit that must fail, with what they run for, and no others.
        says: Words in the message of each.
        replaced: What of the good plugin's source is replaced, once.
        by: What stands there instead.
        requires: The plugin's `Requires-Dist`.
        tests: What is replaced in the class that uses the kit, and by what.
    """

    fails: tuple[str, ...]
    says: tuple[str, ...]
    replaced: str = ""
    by: str = ""
    requires: tuple[str, ...] = REQUIRES
    tests: tuple[str, str] = ("", "")

    def of(self, good: str) -> str:
        """A good plugin's source with the defect."""
        assert self.replaced in good, "the good plugin has changed"
        return good.replace(self.replaced, self.by, 1) if self.replaced else good


ABSENCE = ("test_without_torch_everything_is_listed_with_the_reason", "test_absent_toolchain_is_reported[NAME_sdk]")
DEFECTS = {
    "import_at_the_top": Defect(
        ("test_listing_imports_nothing_heavy",),
        ("NAME_sdk", "recipes_NAME.py, line 3", "build_recipe"),
        "import importlib.util\n",
        "import importlib.util\nimport NAME_sdk\n",
    ),
    "import_of_numpy_where_there_is_a_way_round": Defect(
        ("test_listing_imports_nothing_heavy",),
        ("numpy", "line 4"),
        "import importlib.util\n",
        "import importlib.util\ntry:\n    import numpy\nexcept ImportError:\n    numpy = None\n",
    ),
    "no_help": Defect(
        ("test_options_are_declared_well[NAME:fp16]", "test_options_are_declared_well[NAME:int8]"),
        ("'level'", "no help"),
        '"How hard to try."',
        '""',
    ),
    "default_not_allowed": Defect(
        ("test_options_are_declared_well[NAME:fp16]",),
        ("'mode'", "default", "one of time, space", "'fast'"),
        'default="time"',
        'default="fast"',
    ),
    "no_summary": Defect(
        ("test_recipe_is_described[NAME:fp16]", "test_recipe_is_described[NAME:int8]"),
        ("summary", "RecipeInfo"),
        '"Half precision."',
        '""',
    ),
    "recipe_of_another_backend": Defect(
        ("test_plugin_is_usable",),
        ("backend 'NAME' lists", "id is 'stranger:fp16'"),
        'return "NAME"',
        'return "stranger"',
    ),
    "target_names_a_missing_recipe": Defect(
        ("test_target_names_recipes_that_exist[linux-x86_64-NAME-fp16]",),
        ("'NAME:fp61'", "NAME:fp16, NAME:int8"),
        'Component("NAME:fp16")',
        'Component("NAME:fp61")',
    ),
    "target_without_summary": Defect(
        ("test_target_is_described[linux-x86_64-NAME-fp16]",),
        ("linux-x86_64-NAME-fp16", "no summary"),
        '"Boards")',
        '"")',
    ),
    "no_requirement_on_core": Defect(
        ("test_metadata_bounds_what_it_needs",),
        ("does not require recipes-core", "recipes-core~="),
        requires=("executorch>=1.5,<1.6",),
    ),
    "no_upper_bound": Defect(
        ("test_metadata_bounds_what_it_needs",),
        ("executorch>=1.5, which has no upper bound",),
        requires=("recipes-core~=0.1", "executorch>=1.5"),
    ),
    "misspelt_hook": Defect(
        ("test_plugin_is_usable",),
        ("recipes_register_provider.", "Did you mean 'recipes_register_providers'"),
        "def recipes_register_providers",
        "def recipes_register_provider",
    ),
    "unknown_options_swallowed": Defect(
        ("test_unknown_option_is_refused[NAME:fp16]", "test_unknown_option_is_refused[NAME:int8]"),
        ("resolve_options()", "'no_such_option'", "is accepted, but must be refused"),
        "    def settle_options",
        """    def resolve_options(self, recipe_type, given, source="given"):
        known = {option.name for option in self.describe(recipe_type).options}
        return super().resolve_options(recipe_type, {k: v for k, v in given.items() if k in known}, source)

    def settle_options""",
    ),
    "values_not_checked": Defect(
        (
            "test_wrong_type_is_refused_before_building[NAME:fp16]",
            "test_wrong_type_is_refused_before_building[NAME:int8]",
        ),
        ("'level'", "is accepted, but must be refused"),
        "    def settle_options",
        """    def create_recipe(self, recipe_type, **options):
        good = {k: v for k, v in options.items() if type(v) is not object}
        good |= {"tiles": [4, 4]} if recipe_type is Kind.INT8 else {}
        good |= {"tiles": options["tiles"]} if type(options.get("tiles")) is list else {}
        return self.build_recipe(recipe_type, self.resolve_options(recipe_type, good))

    def settle_options""",
    ),
    "given_options_mutated": Defect(
        ("test_options_given_are_left_alone[NAME:fp16]", "test_options_given_are_left_alone[NAME:int8]"),
        ("settle_options changed", "level", "dict(options)"),
        "return dict(options)",
        'options["level"] = type(options["level"])(2, "raised") if options["level"].value == 1 else options["level"]\n'
        "        return options",
    ),
    "availability_imports_the_toolchain": Defect(
        ("test_availability_imports_nothing_heavy",),
        ("NAME_sdk", "find_spec"),
        'return Availability.of_host(modules={"NAME_sdk": "NAME-sdk"})',
        """try:
            import NAME_sdk
        except ImportError:
            return Availability(False, "NAME_sdk is not installed", "pip install NAME-sdk")
        return Availability(True)""",
    ),
    "availability_raises": Defect(
        ABSENCE,
        ("cannot be listed", "AttributeError", "availability()"),
        "return Availability.of_host(",
        'importlib.util.find_spec("NAME_sdk").name\n        return Availability.of_host(',
    ),
    "availability_without_reason": Defect(
        ABSENCE,
        ("returns no reason", "returns no hint", "NAME_sdk"),
        'Availability.of_host(modules={"NAME_sdk": "NAME-sdk"})',
        'Availability(importlib.util.find_spec("NAME_sdk") is not None)',
    ),
    "availability_sees_nothing": Defect(
        ABSENCE,
        ("reports that it is available", "NAME_sdk"),
        'Availability.of_host(modules={"NAME_sdk": "NAME-sdk"})',
        "Availability(True)",
    ),
    "availability_blames_another": Defect(
        (ABSENCE[1],),
        ("does not name NAME_sdk", "'something is wrong'"),
        'return Availability.of_host(modules={"NAME_sdk": "NAME-sdk"})',
        'found = importlib.util.find_spec("NAME_sdk")\n'
        '        return Availability(True) if found else Availability(False, "something is wrong", "try again")',
    ),
    "recipe_shared_between_calls": Defect(
        ("test_two_recipes_share_nothing[NAME:fp16]", "test_two_recipes_share_nothing[NAME:int8]"),
        ("share the object at settings[0]", "anew"),
        "[{name: option.value for name, option in options.items()}]",
        "[KEPT.setdefault(str(options), {name: option.value for name, option in options.items()})]",
    ),
    "option_ignored": Defect(
        ("test_every_option_reaches_the_recipe[NAME:fp16]",),
        ("'mode' has no effect", "'space'", "expected_failures"),
        "for name, option in options.items()}",
        'for name, option in options.items() if name != "mode"}',
    ),
    "recipe_differs_each_time": Defect(
        ("test_two_recipes_are_equal[NAME:fp16]", "test_two_recipes_are_equal[NAME:int8]"),
        ("differ in settings", "random"),
        "[{name:",
        "[object(), id(object()), len(CALLS), CALLS.append(1)] + [{name:",
    ),
    "option_ignored_as_expected": Defect(
        (),
        (),
        "for name, option in options.items()}",
        'for name, option in options.items() if name != "mode"}',
        tests=(
            "    plugin",
            '    expected_failures = {"test_every_option_reaches_the_recipe[NAME:fp16]": "x"}\n    plugin',
        ),
    ),
    "required_option_without_value": Defect(
        ("test_options_resolve[NAME:int8]",),
        ("'tiles'", "got nothing", "options_for"),
        tests=('{"tiles": [4, 4]} if recipe_type.name == "INT8" else {}', "{}"),
    ),
    "two_options_of_one_name": Defect(
        ("test_options_are_declared_well[NAME:fp16]",),
        ("two options are called 'level'",),
        "else (LEVEL, MODE)",
        "else (LEVEL, MODE, LEVEL)",
    ),
    "expected_failure_of_no_test": Defect(
        ("test_expected_failures_name_tests",),
        ("test_recipe_exports[NAME:fp61]", "no such test"),
        tests=("    plugin", '    expected_failures = {"test_recipe_exports[NAME:fp61]": "why"}\n    plugin'),
    ),
    "expected_failure_that_passes": Defect(
        ("test_recipe_is_described[NAME:int8]",),
        ("XPASS(strict)", "never seen"),
        tests=(
            "    plugin",
            '    expected_failures = {"test_recipe_is_described[NAME:int8]": "never seen"}\n    plugin',
        ),
    ),
    "not_installed": Defect(
        ("test_plugin_is_usable",),
        ("no_such_plugin", "entry point", "[project.entry-points.recipes]"),
        tests=('plugin = "NAME"', 'plugin = "no_such_plugin"'),
    ),
    "not_named": Defect(("test_plugin_is_usable",), ("set plugin",), tests=('plugin = "NAME"', "")),
}
NO_DEFECT = Defect((), ())
EXPORTING = "test_recipe_exports or test_works_after or test_target_combines"

EXPORTS = """
from recipes import Availability, Component, RecipeInfo, RecipeProvider, RecipeType, TargetProfile, hookimpl


class Kind(RecipeType):
    FP32 = "NAME_fp32"
    REST = "NAME_rest"

    @classmethod
    def get_backend_name(cls):
        return "NAME"


def build(recipe_type):
    from executorch.exir import ExecutorchBackendConfig
    from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
    from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
    from executorch.export import ExportRecipe, LoweringRecipe

    if not CLASSES:

        class NAMEBackend(BackendDetails):
            @staticmethod
            def preprocess(edge_program, compile_specs):
                return PreprocessResult(processed_bytes=b"NAME")

        class NAMEPartitioner(Partitioner):
            def partition(self, exported_program):
                tags = {}
                for node in exported_program.graph.nodes:
                    if node.op == "call_function" and node.target.__name__ not in LEFT:
                        node.meta["delegation_tag"] = "NAME"
                        tags["NAME"] = DelegationSpec("NAMEBackend", [])
                return PartitionResult(exported_program, tags)

        # ExecuTorch finds a backend among the subclasses that are alive.
        CLASSES.extend([NAMEPartitioner, NAMEBackend])

    return ExportRecipe(
        recipe_type.value,
        lowering_recipe=LoweringRecipe(partitioners=[CLASSES[0]()]),
        executorch_backend_config=ExecutorchBackendConfig(),
    )


CLASSES = []
LEFT = ("executorch_call_delegate", "getitem")


class Provider(RecipeProvider):
    backend_name = "NAME"

    def get_supported_recipes(self):
        return list(Kind)

    def describe(self, recipe_type):
        return RecipeInfo("Single precision.", "float32", "float32")

    def availability(self):
        return Availability.of_host(modules={"executorch": "executorch"})

    def build_recipe(self, recipe_type, options):
        return build(recipe_type)


@hookimpl
def recipes_register_providers():
    return [Provider()]


@hookimpl
def recipes_register_targets():
    return [TargetProfile("linux-x86_64-NAME-fp32", (Component("NAME:fp32"), Component("NAME:rest")), "Boards")]
"""
EXPORT_TESTS = """
class Test_NAME(PluginConformance):
    plugin = "NAME"
    delegates = {"NAME": "NAMEBackend"}
"""
EXPORT_DEFECTS = {
    "another_delegate_than_promised": Defect(
        ("test_recipe_exports[NAME:fp32]", "test_recipe_exports[NAME:rest]"),
        ("NAMEBackend", "promises FastBackend", "model_for"),
        tests=('"NAMEBackend"', '"FastBackend"'),
    ),
    "a_delegate_where_none_is_promised": Defect(
        ("test_recipe_exports[NAME:fp32]", "test_recipe_exports[NAME:rest]"),
        ("NAMEBackend", "promises none"),
        tests=('"NAMEBackend"', "None"),
    ),
    "no_delegate_though_promised": Defect(
        (
            "test_recipe_exports[NAME:rest]",
            "test_works_after_a_backend_that_took_a_part[NAME:rest]",
        ),
        ("NAME:rest", "delegate"),
        "partitioners=[CLASSES[0]()]",
        'partitioners=[CLASSES[0]()] if recipe_type.name == "FP32" else []',
    ),
    "delegates_of_others_taken": Defect(
        tuple(
            f"test_works_after_a_backend_that_took_{what}[NAME:{r}]"
            for what in ("all", "a_part")
            for r in ("fp32", "rest")
        ),
        ("the delegate of the other backend, ConformanceBackend, is missing", "has delegates of NAMEBackend"),
        'node.op == "call_function" and node.target.__name__ not in LEFT',
        'node.op in ("call_function", "get_attr")',
    ),
    "recipes_of_a_target_in_conflict": Defect(
        ("test_target_combines[linux-x86_64-NAME-fp32]",),
        ("linux-x86_64-NAME-fp32", "segment_alignment", "256", "512"),
        "ExecutorchBackendConfig()",
        'ExecutorchBackendConfig(segment_alignment=256 if recipe_type.name == "FP32" else 512)',
    ),
    "one_partitioner_for_all": Defect(
        ("test_two_recipes_share_nothing[NAME:fp32]", "test_two_recipes_share_nothing[NAME:rest]"),
        ("share the object at lowering_recipe.partitioners[0]",),
        "CLASSES.extend([NAMEPartitioner,",
        "one = NAMEPartitioner()\n        CLASSES.extend([lambda: one,",
    ),
}


@dataclass(frozen=True)
class Ran:
    """What became of the tests of one class: messages of the failed ones, and the names of all."""

    failed: dict[str, str]
    tests: frozenset[str]
    skipped: dict[str, str]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, install_plugin: Callable[..., Path]) -> dict[str, Ran]:
    """The kit's tests of the good plugin and of one with each defect, in one run of pytest; by the plugin's name."""
    site = tmp_path_factory.mktemp("site")
    tests = "from recipes.testing import PluginConformance\n"
    for name, defect in {"good": NO_DEFECT, **DEFECTS}.items():
        source = "KEPT, CALLS = {}, []" + defect.of(GOOD)
        install_plugin(site, name, source.replace("NAME", name), requires=defect.requires)
        (site / f"{name}_sdk.py").write_text(SDK)
        assert defect.tests[0] in TESTS
        tests += (
            TESTS.replace(*defect.tests, 1).replace("NAME", name) if defect.tests[0] else TESTS.replace("NAME", name)
        )
    (site / "test_plugins.py").write_text(tests)
    return run(site, "-k", f"not ({EXPORTING})")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, install_plugin: Callable[..., Path]) -> dict[str, Ran]:
    """Likewise, of plugins that make real recipes, and with the tests that export."""
    pytest.importorskip("executorch", reason="these recipes are real ones")
    site = tmp_path_factory.mktemp("site")
    tests = "from recipes.testing import PluginConformance\n"
    for name, defect in {"good": NO_DEFECT, **EXPORT_DEFECTS}.items():
        install_plugin(site, name, defect.of(EXPORTS).replace("NAME", name), requires=defect.requires)
        assert defect.tests[0] in EXPORT_TESTS
        tests += (EXPORT_TESTS.replace(*defect.tests, 1) if defect.tests[0] else EXPORT_TESTS).replace("NAME", name)
    (site / "test_plugins.py").write_text(tests)
    return run(site, "-k", f"{EXPORTING} or test_two_recipes")


def run(site: Path, *arguments: str) -> dict[str, Ran]:
    """Run `test_plugins.py` of a folder, from which plugins are imported too; by the name of each plugin."""
    report = site / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *arguments]
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("RECIPES_", "PYTEST_"))}
    done = subprocess.run(
        [*command, "test_plugins.py"],
        cwd=site,
        env=environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert report.exists(), done.stdout + done.stderr
    found: dict[str, list[ElementTree.Element]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        found.setdefault(case.get("classname", "").partition(".Test_")[2], []).append(case)
    return {
        name: Ran(
            {
                case.get("name", ""): _message(case, "failure", "error")
                for case in cases
                if _message(case, "failure", "error")
            },
            frozenset(case.get("name", "") for case in cases),
            {case.get("name", ""): _message(case, "skipped") for case in cases if _message(case, "skipped")},
        )
        for name, cases in found.items()
    }


def _message(case: ElementTree.Element, *kinds: str) -> str:
    return "".join(f"{part.get('message')}\n{part.text}" for kind in kinds for part in case.findall(kind))


def test_a_good_plugin_passes_every_test(results: dict[str, Ran]) -> None:
    good = results["good"]
    assert good.failed == {}
    assert good.skipped == {}
    assert {name.partition("[")[0] for name in good.tests} >= {
        name.partition("[")[0] for defect in DEFECTS.values() for name in defect.fails
    }


def test_every_recipe_target_and_module_has_a_test_of_its_own(results: dict[str, Ran]) -> None:
    assert results["good"].tests >= {
        "test_two_recipes_are_equal[good:fp16]",
        "test_two_recipes_are_equal[good:int8]",
        "test_target_is_described[linux-x86_64-good-int8]",
        "test_absent_toolchain_is_reported[good_sdk]",
    }


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_fails_the_test_that_is_there_for_it_and_no_other(name: str, results: dict[str, Ran]) -> None:
    defect, failed = DEFECTS[name], results[name].failed
    assert sorted(failed) == sorted(test.replace("NAME", name) for test in defect.fails), failed
    for message in failed.values():
        for words in defect.says:
            assert words.replace("NAME", name) in message


@pytest.mark.parametrize("name", ["good", *EXPORT_DEFECTS])
def test_a_defect_of_what_a_recipe_makes_fails_the_test_that_is_there_for_it(
    name: str, exported: dict[str, Ran]
) -> None:
    defect, ran = {"good": NO_DEFECT, **EXPORT_DEFECTS}[name], exported[name]
    assert sorted(ran.failed) == sorted(test.replace("NAME", name) for test in defect.fails), ran.failed
    assert ran.skipped == {}
    for message in ran.failed.values():
        for words in defect.says:
            assert words.replace("NAME", name) in message
