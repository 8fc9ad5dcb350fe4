"""The quantizer annotates what ExecuTorch's annotates, and looks for batch norm only where there is some."""

from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)

from recipes_xnnpack.quantizer import QuickXNNPACKQuantizer


class ConvNet(torch.nn.Module):
    """Convolutions with and without batch norm, a residual addition and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU())
        self.second = torch.nn.Conv2d(8, 8, 3, padding=1)
        self.last = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.last((x + self.second(x)).mean((2, 3)))


def captured(training: bool) -> torch.fx.GraphModule:
    model = ConvNet().train(training)
    if not training:
        model.first[1] = torch.nn.Identity()  # as it is when batch norm has been folded into the convolution
    return torch.export.export(model, (torch.rand(2, 3, 6, 6),)).module(check_guards=False)


def annotations(quantizer: XNNPACKQuantizer, graph: torch.fx.GraphModule, **config: Any) -> list[tuple[str, str]]:
    quantizer.set_global(get_symmetric_quantization_config(is_per_channel=True, **config))
    annotated = quantizer.annotate(quantizer.transform_for_annotation(graph))
    return [(node.name, str(node.meta.get("quantization_annotation"))) for node in annotated.graph.nodes]


def test_one_quantizer_annotates_each_graph_as_executorchs_own_does() -> None:
    quick = QuickXNNPACKQuantizer()
    for training, config in ((False, {}), (True, {"is_qat": True}), (False, {"is_dynamic": True})):
        expected = annotations(XNNPACKQuantizer(), captured(training), **config)
        assert annotations(quick, captured(training), **config) == expected
        assert any("annotated=True" in annotation for _, annotation in expected)


def test_without_batch_norm_no_pattern_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = captured(training=False)
    monkeypatch.setattr(torch.export, "export", None)
    assert annotations(QuickXNNPACKQuantizer(), graph)
