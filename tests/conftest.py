"""Small real models, and what looks into exported files. Torch is imported only by the fixtures that need it."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import struct
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest


def pytest_collection_finish() -> None:
    """Leave what was imported out of every collection of garbage, which takes a tenth of an export's time else."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


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
        computes_in: The operations that give each data type, by the type's name; constants and casts left out.
        weights: The bytes of its weights.
    """

    specification_version: int
    operations: Counter[str]
    computes_in: dict[str, set[str]]
    weights: bytes


@dataclass(frozen=True)
class OpenVINOModel:
    """What is read from one OpenVINO model inside a `.pte`, as its CPU compiler left it.

    Args:
        operations: How often each operation occurs.
        constants: The bytes of constants of each data type: `f32`, `f16`, `i8`.
    """

    operations: Counter[str]
    constants: Counter[str]


CLASSES = 10
_BATCH = 32


def _images(size: int, count: int, seed: int) -> tuple[Any, Any]:
    """Noise over one of ten patterns, of shape [count, 3, size, size], and which pattern it is."""
    import torch

    patterns = torch.randn(CLASSES, 3, size, size, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return (patterns[labels] + torch.randn(count, 3, size, size, generator=generator),), labels


def _texts(length: int, count: int, seed: int) -> tuple[Any, Any]:
    """Padded ids, mostly from one tenth of the vocabulary, with their mask, and which tenth it is."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    topical = 1 + labels.unsqueeze(1) * 19 + torch.randint(19, (count, length), generator=generator)
    other = torch.randint(1, 200, (count, length), generator=generator)
    words = torch.randint(4, length + 1, (count, 1), generator=generator)
    mask = (torch.arange(length) < words).long()
    return (torch.where(torch.rand(count, length, generator=generator) < 0.7, topical, other) * mask, mask), labels


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


def _train(model: Any, draw: Callable[[int, int], tuple[Any, Any]], steps: int) -> None:
    """Fit a model to its task, roughly, and give its batch norms the statistics of the final weights.

    The random weights of a deep network say nothing about quantization: their outputs hardly depend on the
    input, and batch norms that have seen nothing let activations die out or blow up layer by layer.
    """
    import torch

    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    model.train()
    for step in range(steps):
        inputs, labels = draw(_BATCH, 100 + step)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(*inputs), labels).backward()
        optimizer.step()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None
    with torch.no_grad():
        for step in range(4):
            model(*draw(_BATCH, 200 + step)[0])
    model.eval()


def _architecture(name: str) -> tuple[Any, Callable[[int, int], tuple[Any, Any]], int]:
    """A model with seeded random weights, what draws its inputs and labels, and how many steps train it."""
    import torch
    import transformers

    torch.manual_seed(0)
    transformer = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "num_labels": CLASSES,
    }
    if name == "mobilenet_v2":
        mobile = transformers.MobileNetV2Config(image_size=64, depth_multiplier=0.35, num_labels=CLASSES)
        return _logits(transformers.MobileNetV2ForImageClassification(mobile)), partial(_images, 64), 30
    if name == "resnet":
        residual = transformers.ResNetConfig(
            embedding_size=16,
            hidden_sizes=[16, 32, 64, 128],
            depths=[1, 1, 1, 1],
            layer_type="basic",
            num_labels=CLASSES,
        )
        return _logits(transformers.ResNetForImageClassification(residual)), partial(_images, 64), 30
    if name == "vit":
        vision = transformers.ViTConfig(image_size=32, patch_size=8, **transformer)
        return _logits(transformers.ViTForImageClassification(vision)), partial(_images, 32), 60
    if name == "bert":
        text = transformers.BertConfig(vocab_size=200, max_position_embeddings=64, **transformer)
        return _logits(transformers.BertForSequenceClassification(text)), partial(_texts, 16), 60
    layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 6 * 6, CLASSES)]
    return torch.nn.Sequential(*layers), partial(_images, 8), 30


@cache
def _trained(name: str) -> Workload:
    model, draw, steps = _architecture(name)
    _train(model, draw, steps)

    def one_by_one(count: int, seed: int) -> list[tuple[Any, ...]]:
        tensors, _ = draw(count, seed)
        return [tuple(tensor[index : index + 1] for tensor in tensors) for index in range(count)]

    return Workload(model, one_by_one(1, 1)[0], one_by_one(16, 2), one_by_one(32, 3))


@pytest.fixture(scope="session")
def workload() -> Callable[[str], Workload]:
    """Gives a model by name, with seeded weights, roughly trained; a copy, for an export may change it.

    `mobilenet_v2`, `resnet`, `vit` and `bert` are the architectures of transformers in small, `convolution` is a
    convolution and a linear layer.
    """

    def get(name: str) -> Workload:
        return copy.deepcopy(_trained(name))

    return get


@pytest.fixture(scope="session")
def run_file() -> Callable[[bytes, list[tuple[Any, ...]]], Any]:
    """Runs `forward` of a `.pte` on several inputs with ExecuTorch's runtime; gives the outputs as one tensor."""
    import executorch.kernels.quantized  # noqa: F401 - registers the kernels of what quantization leaves outside delegates
    import torch
    from executorch.runtime import Runtime

    def run(pte: bytes, inputs: list[tuple[Any, ...]]) -> torch.Tensor:
        # A method works in its program's memory, so the program must live as long.
        program = Runtime.get().load_program(pte)
        method = program.load_method("forward")
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
        computes_in: defaultdict[str, set[str]] = defaultdict(set)
        for function in specification.mlProgram.functions.values():
            for block in function.block_specializations.values():
                for operation in block.operations:
                    operations[operation.type] += 1
                    if operation.type not in ("const", "cast") and not operation.type.startswith("constexpr_"):
                        for output in operation.outputs:
                            computes_in[MIL_pb2.DataType.Name(output.type.tensorType.dataType)].add(operation.type)
        weights = b"".join(path.read_bytes() for path in sorted(manifest.parent.rglob("*.bin")))
        return CoreMLModel(specification.specificationVersion, operations, dict(computes_in), weights)

    def read(pte: bytes) -> list[CoreMLModel]:
        with contextlib.redirect_stdout(io.StringIO()):
            folders = extract_coreml_models(pte, tmp_path / "coreml")
        return [read_one(folder) for folder in folders]

    return read


@pytest.fixture(scope="session")
def read_openvino() -> Callable[[bytes], list[OpenVINOModel]]:
    """Opens the OpenVINO models inside a `.pte`."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    # A compiled model begins with the places and sizes of three parts: its properties, its constants, and its
    # operations in XML, whose bytes OpenVINO combines with these by exclusive or.
    key = bytes((0x30, 0x60, 0x70, 0x02, 0x04, 0x08, 0x3F, 0x6F, 0x72, 0x74, 0x78, 0x7F))

    def read_one(compiled: bytes) -> OpenVINOModel:
        *_, start, size = struct.unpack_from("<6Q", compiled)
        text = bytes(byte ^ key[i % len(key)] for i, byte in enumerate(compiled[start : start + size]))
        operations: Counter[str] = Counter()
        constants: Counter[str] = Counter()
        for layer in ElementTree.fromstring(text).iter("layer"):
            operations[layer.attrib["type"]] += 1
            data = layer.find("data")
            if layer.attrib["type"] == "Const" and data is not None:
                constants[data.attrib["element_type"]] += int(data.attrib["size"])
        return OpenVINOModel(operations, constants)

    def read(pte: bytes) -> list[OpenVINOModel]:
        program = deserialize_pte_binary(pte).program
        (plan,) = program.execution_plan
        return [
            read_one(bytes(program.backend_delegate_data[delegate.processed.index].data))
            for delegate in plan.delegates
            if delegate.id == "OpenvinoBackend"
        ]

    return read
