"""Small real models, and what looks into exported files. Torch is imported only by the fixtures that need it."""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Workload:
    """A model with inputs to export, calibrate and test it with.

    Args:
        model: In evaluation mode; gives one float32 tensor.
        example: One tuple of inputs.
        calibration: Tuples of inputs for quantization, drawn as the others are.
        held_out: Tuples of inputs that calibration does not see.
    """

    model: Any
    example: tuple[Any, ...]
    calibration: list[tuple[Any, ...]]
    held_out: list[tuple[Any, ...]]


@dataclass(frozen=True)
class CoreMLModel:
    """What is read from one Core ML model inside a `.pte`.

    Args:
        specification_version: 6 for iOS15, 7 for iOS16, 8 for iOS17, 9 for iOS18.
        operations: How often each operation occurs in the program.
        computes_in: The data types of what the operations give that are neither constants nor casts.
        weights: The bytes of its weights.
    """

    specification_version: int
    operations: Counter[str]
    computes_in: frozenset[str]
    weights: bytes


def _images(size: int, count: int, seed: int) -> list[tuple[Any, ...]]:
    import torch

    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(1, 3, size, size, generator=generator),) for _ in range(count)]


def _texts(length: int, count: int, seed: int) -> list[tuple[Any, ...]]:
    import torch

    generator = torch.Generator().manual_seed(seed)
    texts = []
    for index in range(count):
        words = 4 + index % (length - 4)
        mask = (torch.arange(length) < words).long().unsqueeze(0)
        texts.append((torch.randint(1, 200, (1, length), generator=generator) * mask, mask))
    return texts


def _logits(model: Any) -> Any:
    import torch

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.model(*inputs).logits
            return logits

    return Logits()


def _settle(model: Any, inputs: list[tuple[Any, ...]]) -> None:
    """Give random weights what training gives: batch norms that know their inputs, and logits that differ."""
    import torch

    # With the running statistics of a fresh batch norm, activations die out layer by layer.
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None
    model.train()
    with torch.no_grad():
        model(torch.cat([image for (image,) in inputs]))


def _make(name: str) -> Workload:
    import torch
    import transformers

    torch.manual_seed(0)
    if name == "mobilenet_v2":
        configuration = transformers.MobileNetV2Config(image_size=64, depth_multiplier=0.35, num_labels=10)
        model = _logits(transformers.MobileNetV2ForImageClassification(configuration))
        draw = lambda count, seed: _images(64, count, seed)  # noqa: E731
    elif name == "resnet":
        configuration = transformers.ResNetConfig(
            embedding_size=16, hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 1, 1], layer_type="basic", num_labels=10
        )
        model = _logits(transformers.ResNetForImageClassification(configuration))
        draw = lambda count, seed: _images(64, count, seed)  # noqa: E731
    elif name == "vit":
        configuration = transformers.ViTConfig(
            image_size=32,
            patch_size=8,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            num_labels=10,
        )
        model = _logits(transformers.ViTForImageClassification(configuration))
        draw = lambda count, seed: _images(32, count, seed)  # noqa: E731
    elif name == "bert":
        configuration = transformers.BertConfig(
            vocab_size=200,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            max_position_embeddings=64,
            num_labels=10,
        )
        model = _logits(transformers.BertForSequenceClassification(configuration))
        draw = lambda count, seed: _texts(16, count, seed)  # noqa: E731
    else:
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 6 * 6, 10)
        )
        draw = lambda count, seed: _images(8, count, seed)  # noqa: E731
    if name in ("mobilenet_v2", "resnet"):
        _settle(model, draw(16, 4))
    return Workload(model.eval(), draw(1, 1)[0], draw(16, 2), draw(8, 3))


@pytest.fixture(scope="session")
def workload() -> Callable[[str], Workload]:
    """Makes a model by name, with seeded random weights; each call gives a new one, for an export may change it.

    `mobilenet_v2`, `resnet`, `vit` and `bert` are the architectures of transformers in small, `convolution` is a
    convolution and a linear layer.
    """
    return _make


@pytest.fixture(scope="session")
def run_file() -> Callable[[bytes, list[tuple[Any, ...]]], Any]:
    """Runs `forward` of a `.pte` on several inputs with ExecuTorch's runtime; gives the outputs as one tensor."""
    import executorch.kernels.quantized  # noqa: F401 - registers the kernels of what quantization leaves outside delegates
    import torch
    from executorch.runtime import Runtime

    def run(pte: bytes, inputs: list[tuple[Any, ...]]) -> torch.Tensor:
        method = Runtime.get().load_program(pte).load_method("forward")
        assert method is not None
        # The runtime reuses the memory of its outputs.
        return torch.cat([method.execute(list(one))[0].clone() for one in inputs])

    return run


@pytest.fixture(scope="session")
def run_eager() -> Callable[[Workload, list[tuple[Any, ...]]], Any]:
    """Runs a model in PyTorch on several inputs; gives the outputs as one tensor."""
    import torch

    def run(workload: Workload, inputs: list[tuple[Any, ...]]) -> torch.Tensor:
        with torch.no_grad():
            return torch.cat([workload.model(*one) for one in inputs])

    return run


@pytest.fixture(scope="session")
def signal_to_noise() -> Callable[[Any, Any], float]:
    """The ratio in dB of what varies in the expected outputs, of shape [inputs, logits], to the error.

    What is the same for every input is no signal: a model that ignores its input scores 0 dB or less.
    """

    def ratio(expected: Any, got: Any) -> float:
        signal = (expected - expected.mean(dim=0, keepdim=True)).square().mean()
        noise = (expected - got).square().mean().clamp(min=1e-30)
        return float(10 * (signal / noise).log10())

    return ratio


@pytest.fixture(scope="session")
def read_delegates() -> Callable[[bytes], Counter[str]]:
    """How many delegates of each backend a `.pte` has."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    def read(pte: bytes) -> Counter[str]:
        (plan,) = deserialize_pte_binary(pte).program.execution_plan
        return Counter(delegate.id for delegate in plan.delegates)

    return read


@pytest.fixture
def read_coreml(tmp_path: Path) -> Callable[[bytes], list[CoreMLModel]]:
    """Opens the Core ML models inside a `.pte`, as coremltools reads them on any system."""
    import coremltools
    from coremltools.proto import MIL_pb2
    from executorch.examples.apple.coreml.scripts.extract_coreml_models import extract_coreml_models

    def read_one(folder: Path) -> CoreMLModel:
        (manifest,) = folder.rglob("Manifest.json")
        specification = coremltools.models.MLModel(str(manifest.parent), skip_model_load=True).get_spec()
        operations: Counter[str] = Counter()
        computes_in = set()
        for function in specification.mlProgram.functions.values():
            for block in function.block_specializations.values():
                for operation in block.operations:
                    operations[operation.type] += 1
                    if operation.type not in ("const", "cast") and not operation.type.startswith("constexpr_"):
                        computes_in |= {
                            MIL_pb2.DataType.Name(output.type.tensorType.dataType) for output in operation.outputs
                        }
        weights = b"".join(path.read_bytes() for path in sorted(manifest.parent.rglob("*.bin")))
        return CoreMLModel(specification.specificationVersion, operations, frozenset(computes_in), weights)

    def read(pte: bytes) -> list[CoreMLModel]:
        with contextlib.redirect_stdout(io.StringIO()):
            folders = extract_coreml_models(pte, tmp_path / "coreml")
        return [read_one(folder) for folder in folders]

    return read
