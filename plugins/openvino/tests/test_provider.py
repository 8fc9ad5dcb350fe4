"""Options are checked when a recipe is made, and none is ignored."""

from typing import Any

import pytest

from recipes import OptionError
from recipes_openvino import OpenVINORecipeType as Type
from recipes_openvino.provider import OpenVINOProvider

SKIP = "skip_ops_for_openvino_delegation"


def test_the_device_is_the_cpu_and_nothing_is_skipped_unless_given() -> None:
    settled = OpenVINOProvider().resolve_options(Type.FP32, {})
    assert {name: (one.value, one.source) for name, one in settled.items()} == {
        "device": ("CPU", "default"),
        SKIP: ((), "default"),
    }


@pytest.mark.parametrize("given", ["cpu", "TPU", "AUTO", "HETERO:GPU,CPU", 1])
def test_a_device_that_openvino_does_not_compile_for_is_refused(given: Any) -> None:
    with pytest.raises(OptionError, match=r"'device' must be one of CPU, GPU, GPU\.0, GPU\.1, NPU"):
        OpenVINOProvider().resolve_options(Type.FP32, {"device": given})


def test_openvinos_config_is_no_option() -> None:
    with pytest.raises(OptionError, match=f"takes no option 'config'. It takes: device, {SKIP}"):
        OpenVINOProvider().resolve_options(Type.FP32, {"config": {"INFERENCE_PRECISION_HINT": "f32"}})


def test_a_device_that_is_not_in_this_host_is_refused_before_anything_is_lowered() -> None:
    openvino = pytest.importorskip("openvino", reason="OpenVINO has no wheel for this host")
    absent = next(name for name in ("NPU", "GPU.1", "GPU") if name not in openvino.Core().available_devices)
    with pytest.raises(OptionError, match=f"'device' is '{absent}', and OpenVINO compiles on the device itself: .*CPU"):
        OpenVINOProvider().create_recipe(Type.FP32, device=absent)


@pytest.mark.parametrize("given", ["relu", "aten.relu", "aten::relu.default", "torch.ops.aten.relu.default"])
def test_an_operator_to_skip_that_is_not_written_as_one_is_refused(given: str) -> None:
    with pytest.raises(OptionError, match=rf"{SKIP}' takes operators as namespace\.operator\.overload"):
        OpenVINOProvider().resolve_options(Type.FP32, {SKIP: [given]})


def test_an_operator_to_skip_that_does_not_exist_is_refused_with_those_close_to_it() -> None:
    pytest.importorskip("openvino", reason="OpenVINO has no wheel for this host")
    with pytest.raises(OptionError, match=r"no operator 'aten\.add\.tensor'.*aten\.add\.Tensor"):
        OpenVINOProvider().create_recipe(Type.FP32, **{SKIP: ["aten.add.tensor"]})
