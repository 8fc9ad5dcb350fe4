"""The plugin as discovery sees it: light, and complete."""

import platform

import pytest
from executorch.backends.xnnpack.recipes import XNNPackRecipeType as ExecuTorchRecipeType

from recipes_xnnpack import XNNPackRecipeType, plugin
from recipes_xnnpack.provider import XNNPackProvider


def test_recipe_types_are_those_of_executorch() -> None:
    assert {t.name: t.value for t in XNNPackRecipeType} == {t.name: t.value for t in ExecuTorchRecipeType}
    assert XNNPackRecipeType.get_backend_name() == ExecuTorchRecipeType.get_backend_name() == "xnnpack"


def test_the_provider_makes_every_recipe_type() -> None:
    provider = XNNPackProvider()
    assert provider.backend_name == "xnnpack"
    assert provider.get_supported_recipes() == list(XNNPackRecipeType)


@pytest.mark.parametrize("recipe_type", XNNPackRecipeType)
def test_every_recipe_type_is_described(recipe_type: XNNPackRecipeType) -> None:
    info = XNNPackProvider().describe(recipe_type)
    assert info.summary.endswith(".")
    assert info.weights in ("float32", "int8", "int4")
    assert info.activations in ("float32", "int8", "int8 dynamic")
    # Only ranges that are fixed before the model runs come from calibration.
    assert info.needs_calibration == (info.activations == "int8")
    assert info.deployment_target == ""


@pytest.mark.parametrize(("system", "machine"), [("Linux", "x86_64"), ("Windows", "AMD64"), ("Darwin", "arm64")])
def test_it_is_available_wherever_executorch_is(monkeypatch: pytest.MonkeyPatch, system: str, machine: str) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert XNNPackProvider().availability().available


def test_targets_are_every_system_in_both_precisions() -> None:
    systems = ("android-arm64", "ios-arm64", "linux-arm64", "linux-x86_64", "macos-arm64", "windows-x86_64")
    targets = {profile.name: profile for profile in plugin.recipes_register_targets()}
    assert sorted(targets) == sorted(f"{system}-xnnpack-{p}" for system in systems for p in ("fp32", "int8"))
    for name, profile in targets.items():
        (component,) = profile.components
        expected = "xnnpack:fp32" if name.endswith("fp32") else "xnnpack:pt2e_int8_static_per_channel"
        assert (component.recipe, component.role, component.required) == (expected, "accelerator", True)
        assert profile.summary


def test_it_is_the_default_where_there_is_no_other_accelerator() -> None:
    defaults = [profile.name for profile in plugin.recipes_register_targets() if profile.default]
    assert defaults == ["android-arm64-xnnpack-fp32", "linux-x86_64-xnnpack-fp32", "windows-x86_64-xnnpack-fp32"]
