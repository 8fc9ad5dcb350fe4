"""The plugin as discovery sees it: light, and complete."""

import platform
import subprocess
import sys

import pytest

from recipes import BackendUnavailableError
from recipes_openvino import OpenVINORecipeType, plugin
from recipes_openvino.provider import OpenVINOProvider

HEAVY = ("torch", "executorch", "torchao", "openvino", "nncf", "numpy")

EVERYTHING_THAT_LISTS = f"""
import sys
from recipes_openvino import OpenVINORecipeType, plugin
(provider,) = plugin.recipes_register_providers()
plugin.recipes_register_targets()
provider.availability()
for recipe_type in provider.get_supported_recipes():
    provider.describe(recipe_type)
    provider.recipe_availability(recipe_type)
    provider.resolve_options(recipe_type, {{"skip_ops_for_openvino_delegation": ["aten.relu.default"]}})
print([name for name in {HEAVY!r} if name in sys.modules])
"""


def test_listing_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EVERYTHING_THAT_LISTS], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_provider_makes_every_recipe_type() -> None:
    provider = OpenVINOProvider()
    assert provider.backend_name == "openvino"
    assert provider.get_supported_recipes() == list(OpenVINORecipeType)


@pytest.mark.parametrize("recipe_type", OpenVINORecipeType)
def test_every_recipe_type_is_described(recipe_type: OpenVINORecipeType) -> None:
    info = OpenVINOProvider().describe(recipe_type)
    assert info.summary.endswith(".")
    assert info.weights == {"FP32": "float32", "FP16": "float16", "INT8": "int8"}[recipe_type.name]
    assert info.needs_calibration == (info.activations == "int8")
    assert all(option.help.endswith(".") for option in info.options)


@pytest.mark.parametrize(
    ("system", "machine", "available"),
    [("Linux", "x86_64", True), ("Linux", "aarch64", False), ("Darwin", "arm64", False), ("Windows", "AMD64", False)],
)
def test_it_is_available_where_executorchs_wheel_has_the_runtime(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, available: bool
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert OpenVINOProvider().availability().available is available


def without(monkeypatch: pytest.MonkeyPatch, absent: str) -> OpenVINOProvider:
    """The provider on a host that lacks one module."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == absent else object())
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    return OpenVINOProvider()


def test_a_missing_openvino_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    availability = without(monkeypatch, "openvino").availability()
    assert availability.reason == "openvino is not installed"
    assert availability.hint == "pip install 'openvino>=2025.1,<2026'"


def test_a_missing_nncf_takes_int8_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = without(monkeypatch, "nncf")
    assert provider.availability().available
    available = {one.name: provider.recipe_availability(one).available for one in OpenVINORecipeType}
    assert available == {"FP32": True, "FP16": True, "INT8": False}
    with pytest.raises(BackendUnavailableError, match=r"openvino:int8 cannot be made here: nncf is not installed"):
        provider.create_recipe(OpenVINORecipeType.INT8)


def test_targets_are_x86_linux_in_three_precisions_with_the_cpu_last() -> None:
    targets = {profile.name: profile for profile in plugin.recipes_register_targets()}
    assert sorted(targets) == [f"linux-x86_64-openvino-{precision}" for precision in ("fp16", "fp32", "int8")]
    for name, profile in targets.items():
        accelerator, fallback = profile.components
        assert (accelerator.recipe, accelerator.required) == (f"openvino:{name.rpartition('-')[2]}", True)
        assert (fallback.recipe, fallback.role, fallback.required) == ("xnnpack:fp32", "fallback", False)
        assert profile.summary
        assert not profile.default
