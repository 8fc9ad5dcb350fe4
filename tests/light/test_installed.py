"""Discovery with wheels that pip really installed, in environments without torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CORE, COREML, OPENVINO, XNNPACK = "recipes-core", "recipes-coreml", "recipes-openvino", "recipes-xnnpack"

COREML_TARGETS = [f"{system}-arm64-coreml-{p}" for system in ("ios", "macos") for p in ("fp16", "fp32", "int8")]
XNNPACK_TARGETS = [
    f"{system}-xnnpack-{precision}"
    for system in ("android-arm64", "ios-arm64", "linux-arm64", "linux-x86_64", "macos-arm64", "windows-x86_64")
    for precision in ("fp32", "int8")
]
OPENVINO_TARGETS = [f"linux-x86_64-openvino-{precision}" for precision in ("fp16", "fp32", "int8")]
ALL_TARGETS = sorted(COREML_TARGETS + OPENVINO_TARGETS + XNNPACK_TARGETS)

LIST = """
import json, recipes
rows = recipes.list_targets(include_unavailable=True)
print(json.dumps({t.name: [t.state, t.reason, t.hint, [c.recipe for c in t.active]] for t in rows}))
"""
HEAVY_MODULES = """
import sys
heavy = {"torch", "executorch", "torchao", "coremltools", "openvino", "nncf", "numpy"}
print(sorted(heavy & set(sys.modules)))
"""

Environment = Callable[..., Callable[..., str]]


def targets(printed: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


def error_of(call: str) -> str:
    """Code that prints the class and the text of what a call raises."""
    return f"import recipes\ntry:\n    {call}\nexcept recipes.RecipesError as e:\n    print(type(e).__name__, e)"


def test_core_alone_lists_nothing_and_says_what_to_install(environment: Environment) -> None:
    printed = environment(CORE)(
        "import recipes, warnings\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    print(recipes.list_targets())\n"
        "print(*[w.message for w in caught])"
    )
    listed, warning = printed.splitlines()
    assert listed == "[]"
    assert "pip install recipes-coreml recipes-openvino recipes-xnnpack" in warning


def test_core_alone_names_the_package_that_has_the_default_target(environment: Environment) -> None:
    printed = environment(CORE)(error_of("recipes.get_ios_recipe()"))
    assert printed.startswith("UnknownTargetError")
    assert "pip install recipes-coreml" in printed


def test_without_torch_all_targets_are_listed_as_unavailable_with_the_reason_and_the_cure(
    environment: Environment,
) -> None:
    run = environment(CORE, COREML, OPENVINO, XNNPACK)
    rows = targets(run(LIST))
    assert sorted(rows) == ALL_TARGETS
    for name, (state, reason, hint, active) in rows.items():
        assert state == "unavailable", name
        assert "executorch" in reason, name
        assert "pip install" in hint, name
        assert active == [], name
    assert run("import recipes; print(recipes.list_targets())").splitlines() == ["[]"]


def test_without_torch_making_a_recipe_says_what_to_install(environment: Environment) -> None:
    run = environment(CORE, COREML, OPENVINO, XNNPACK)
    printed = run(error_of("recipes.get_target_recipe('linux-x86_64-xnnpack-fp32')"))
    assert printed.startswith("TargetUnavailableError")
    assert "pip install" in printed
    assert "executorch" in printed


def test_listing_imports_no_toolchain_even_where_all_are_present(environment: Environment, toolchains: Path) -> None:
    printed = environment(CORE, COREML, OPENVINO, XNNPACK, extra=(toolchains,))(
        "import recipes\n"
        "names = [t.name for t in recipes.list_targets()]\n"
        "recipes.list_plugins(), recipes.list_recipes()\n"
        "print(len(names))\n" + HEAVY_MODULES
    )
    assert printed.splitlines() == ["21", "[]"]


def test_with_all_plugins_every_target_is_ready_whatever_the_order_of_installation(
    environment: Environment, toolchains: Path
) -> None:
    one = targets(environment(CORE, COREML, OPENVINO, XNNPACK, extra=(toolchains,))(LIST))
    other = targets(environment(XNNPACK, OPENVINO, COREML, CORE, extra=(toolchains,))(LIST))
    assert one == other
    assert sorted(one) == ALL_TARGETS
    assert {state for state, *_ in one.values()} == {"ready"}
    assert one["ios-arm64-coreml-fp32"][3] == ["coreml:fp32", "xnnpack:fp32"]
    assert one["linux-x86_64-openvino-int8"][3] == ["openvino:int8", "xnnpack:fp32"]


@pytest.mark.parametrize("system", ["ios", "macos"])
def test_without_the_fallback_a_target_is_degraded_and_says_how_to_complete_it(
    system: str, environment: Environment, toolchains: Path
) -> None:
    rows = targets(environment(CORE, COREML, extra=(toolchains,))(LIST))
    assert sorted(rows) == sorted(COREML_TARGETS)
    state, reason, hint, active = rows[f"{system}-arm64-coreml-fp32"]
    assert state == "degraded"
    assert "recipes-xnnpack is not installed" in reason
    assert hint == "pip install recipes-xnnpack"
    assert active == ["coreml:fp32"]


def test_without_what_int8_needs_only_int8_is_unavailable(
    environment: Environment, toolchains: Path, tmp_path: Path
) -> None:
    for module in toolchains.glob("*.py"):
        if module.stem != "nncf":
            (tmp_path / module.name).write_text(module.read_text())
    run = environment(CORE, OPENVINO, XNNPACK, extra=(tmp_path,))
    rows = targets(run(LIST))
    assert {name: rows[name][0] for name in OPENVINO_TARGETS} == {
        "linux-x86_64-openvino-fp16": "ready",
        "linux-x86_64-openvino-fp32": "ready",
        "linux-x86_64-openvino-int8": "unavailable",
    }
    _, reason, hint, _ = rows["linux-x86_64-openvino-int8"]
    assert reason == "openvino:int8: nncf is not installed"
    assert hint == "pip install 'nncf==3.1.0'"
    printed = run(error_of("recipes.get_recipe('openvino:int8')"))
    assert printed.startswith("BackendUnavailableError")
    assert "openvino:int8 cannot be made here: nncf is not installed. pip install 'nncf==3.1.0'" in printed


def test_without_the_accelerator_everything_else_works(environment: Environment, toolchains: Path) -> None:
    run = environment(CORE, XNNPACK, extra=(toolchains,))
    rows = targets(run(LIST))
    assert sorted(rows) == sorted(XNNPACK_TARGETS)
    assert {state for state, *_ in rows.values()} == {"ready"}
    printed = run(error_of("recipes.get_ios_recipe()"))
    assert printed.startswith("UnknownTargetError")
    assert "pip install recipes-coreml" in printed
    assert "ios-arm64-xnnpack-fp32" in printed


def test_the_command_line_is_installed_with_core(environment: Environment, toolchains: Path) -> None:
    rows = json.loads(environment(CORE, XNNPACK, extra=(toolchains,))(command=("recipes", "targets", "--json")))
    assert [row["name"] for row in rows] == sorted(XNNPACK_TARGETS)


def test_without_torch_doctor_says_what_is_missing_and_that_nothing_needs_fixing(environment: Environment) -> None:
    run = environment(CORE, COREML, OPENVINO, XNNPACK)
    found = json.loads(run(command=("recipes", "doctor", "--json")))
    assert found["needs_a_person"] is False
    assert found["distributions"]["recipes-core"]
    assert [found["distributions"][name] for name in ("executorch", "torch", "torchao")] == [None] * 3
    assert found["runtime"] == {"backends": {}, "problem": "executorch is not installed"}
    assert [(f["level"], f["code"]) for f in found["findings"]] == [("warning", "no-runtime")]
    assert sorted(target["name"] for target in found["targets"]) == ALL_TARGETS
    page = run(command=("recipes", "doctor"))
    assert "executorch is not installed" in page
    assert page.splitlines()[-1] == "Nothing needs fixing."
