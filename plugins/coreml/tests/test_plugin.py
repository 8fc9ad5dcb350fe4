"""The plugin as discovery sees it: light, and complete."""

import platform
import subprocess
import sys
from typing import NamedTuple

import pytest
from executorch.backends.apple.coreml.recipes import CoreMLRecipeType as ExecuTorchRecipeType

from recipes import BackendUnavailableError
from recipes_coreml import CoreMLRecipeType, plugin
from recipes_coreml.provider import CoreMLProvider

IMPORTS_COREMLTOOLS = """
import logging
from recipes_coreml import CoreMLRecipeType
from recipes_coreml.provider import CoreMLProvider
CoreMLProvider().create_recipe(CoreMLRecipeType.FP16)
print(logging.getLogger("coremltools").level)
"""


class PythonVersion(NamedTuple):
    major: int
    minor: int


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)


def test_making_a_recipe_shows_no_warnings_of_coremltools() -> None:
    done = run_python(IMPORTS_COREMLTOOLS)
    for noise in ("scikit-learn version", "has not been tested with coremltools", "Proxy"):
        assert noise not in done.stderr
    assert done.stdout.strip() == "0", "the logger's level is put back"


def test_recipe_types_are_those_of_executorch() -> None:
    assert {t.name: t.value for t in CoreMLRecipeType} == {t.name: t.value for t in ExecuTorchRecipeType}
    assert CoreMLRecipeType.get_backend_name() == ExecuTorchRecipeType.get_backend_name() == "coreml"


def test_the_provider_makes_every_recipe_type() -> None:
    provider = CoreMLProvider()
    assert provider.backend_name == "coreml"
    assert provider.get_supported_recipes() == list(CoreMLRecipeType)


@pytest.mark.parametrize("recipe_type", CoreMLRecipeType)
def test_every_recipe_type_is_described(recipe_type: CoreMLRecipeType) -> None:
    info = CoreMLProvider().describe(recipe_type)
    assert info.summary.endswith(".")
    assert info.weights in ("float32", "float16", "int8", "int4", "codebook")
    assert info.activations in ("float32", "float16", "int8")
    assert info.needs_calibration == (info.activations == "int8")
    assert info.deployment_target.startswith("iOS")
    assert all(option.help.endswith(".") for option in info.options)


@pytest.mark.parametrize(
    ("system", "machine", "available"),
    [
        ("Darwin", "arm64", True),
        ("Linux", "x86_64", True),
        ("Linux", "aarch64", False),
        ("Windows", "AMD64", False),
    ],
)
def test_it_is_available_where_coremltools_is(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, available: bool
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert CoreMLProvider().availability().available is available


def test_a_python_without_coremltools_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", PythonVersion(3, 14))
    assert "needs Python below 3.14" in CoreMLProvider().availability().reason


def test_a_recipe_on_a_host_that_cannot_lower_says_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    with pytest.raises(BackendUnavailableError, match="'coreml' cannot lower here: works on Darwin arm64"):
        CoreMLProvider().create_recipe(CoreMLRecipeType.FP16)


def test_targets_are_apples_systems_in_three_precisions() -> None:
    targets = {profile.name: profile for profile in plugin.recipes_register_targets()}
    assert sorted(targets) == sorted(
        f"{os}-arm64-coreml-{p}" for os in ("ios", "macos") for p in ("fp16", "fp32", "int8")
    )
    assert all(profile.summary for profile in targets.values())


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("os", ["ios", "macos"])
def test_float_targets_fall_back_to_the_cpu(os: str, precision: str) -> None:
    targets = {profile.name: profile for profile in plugin.recipes_register_targets()}
    accelerator, fallback = targets[f"{os}-arm64-coreml-{precision}"].components
    assert (accelerator.recipe, accelerator.role, accelerator.required) == (f"coreml:{precision}", "accelerator", True)
    assert (fallback.recipe, fallback.role, fallback.required) == ("xnnpack:fp32", "fallback", False)
    assert fallback.distribution == "recipes-xnnpack"


@pytest.mark.parametrize("os", ["ios", "macos"])
def test_int8_targets_are_core_ml_alone(os: str) -> None:
    targets = {profile.name: profile for profile in plugin.recipes_register_targets()}
    (component,) = targets[f"{os}-arm64-coreml-int8"].components
    assert (component.recipe, component.required) == ("coreml:pt2e_int8_static", True)


def test_float16_is_the_default() -> None:
    defaults = [profile.name for profile in plugin.recipes_register_targets() if profile.default]
    assert defaults == ["ios-arm64-coreml-fp16", "macos-arm64-coreml-fp16"]
