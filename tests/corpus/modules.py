"""Small modules of every common layer, each with inputs: what the corpus exports at each data type to each target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Case = tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]


class Calls(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


class Last(nn.Module):
    """The output of a recurrent layer, without its state."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class Counter(nn.Module):
    """A buffer that starts from ones and is updated."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.register_buffer("total", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(1)
        return self.linear(x) + self.total


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.linear = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.embedding(x.abs().long() % 16))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.norm(self.conv(x)))


def rows() -> tuple[Tensor, ...]:
    return (torch.rand(2, 8) * 4,)


def pair() -> tuple[Tensor, ...]:
    return (torch.rand(2, 8) * 4, torch.rand(2, 8) * 4 + 1)


def image() -> tuple[Tensor, ...]:
    return (torch.rand(1, 3, 12, 12) * 4,)


def signal() -> tuple[Tensor, ...]:
    return (torch.rand(1, 3, 16) * 4,)


def sequence() -> tuple[Tensor, ...]:
    return (torch.rand(1, 6, 8) * 4,)


def volume() -> tuple[Tensor, ...]:
    return (torch.rand(1, 2, 5, 5, 5) * 4,)


def of(function: Callable[..., Any]) -> Callable[[], nn.Module]:
    return lambda: Calls(function)


def chain(*layers: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*(layer() for layer in layers))


CORPUS: dict[str, Case] = {
    "linear": (lambda: nn.Linear(8, 4), rows),
    "linear without bias": (lambda: nn.Linear(8, 4, bias=False), rows),
    "linear, relu": (chain(lambda: nn.Linear(8, 4), nn.ReLU), rows),
    "bilinear": (lambda: nn.Bilinear(8, 8, 4), pair),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3), signal),
    "conv2d": (lambda: nn.Conv2d(3, 4, 3), image),
    "conv2d, stride and groups": (lambda: nn.Conv2d(3, 6, 3, stride=2, groups=3), image),
    "conv2d, dilation": (lambda: nn.Conv2d(3, 4, 3, dilation=2), image),
    "conv2d, circular padding": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), image),
    "conv2d, channels last": (lambda: nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), image),
    "conv3d": (lambda: nn.Conv3d(2, 3, 3), volume),
    "transposed conv2d": (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2), image),
    "transposed conv2d, output padding": (
        lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1), image),
    "conv2d, batch norm, relu6": (chain(lambda: nn.Conv2d(3, 4, 3), lambda: nn.BatchNorm2d(4), nn.ReLU6), image),
    "residual block": (Residual, image),
    "layer norm": (lambda: nn.LayerNorm(8), rows),
    "group norm": (lambda: nn.GroupNorm(3, 3), image),
    "instance norm": (lambda: nn.InstanceNorm2d(3), image),
    "rms norm": (lambda: nn.RMSNorm(8), rows),
    "max pool": (lambda: nn.MaxPool2d(2), image),
    "max pool, dilation": (lambda: nn.MaxPool2d(2, dilation=2), image),
    "average pool": (lambda: nn.AvgPool2d(2), image),
    "average pool, divisor": (lambda: nn.AvgPool2d(2, divisor_override=3), image),
    "adaptive average pool": (lambda: nn.AdaptiveAvgPool2d(1), image),
    "relu": (nn.ReLU, rows),
    "leaky relu": (nn.LeakyReLU, rows),
    "prelu": (chain(lambda: nn.Linear(8, 8), lambda: nn.PReLU(8)), rows),
    "elu": (nn.ELU, rows),
    "gelu": (nn.GELU, rows),
    "silu": (nn.SiLU, rows),
    "hardswish": (nn.Hardswish, rows),
    "sigmoid, tanh": (chain(nn.Sigmoid, nn.Tanh), rows),
    "softmax": (lambda: nn.Softmax(-1), rows),
    "log softmax": (lambda: nn.LogSoftmax(-1), rows),
    "embedding": (Embedded, rows),
    "lstm": (lambda: Last(nn.LSTM(8, 4, batch_first=True)), sequence),
    "gru": (lambda: Last(nn.GRU(8, 4, batch_first=True)), sequence),
    "attention": (Attention, sequence),
    "transformer layer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True), sequence),
    "upsample, nearest": (lambda: nn.Upsample(scale_factor=2), image),
    "upsample, bilinear": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), image),
    "pixel shuffle": (chain(lambda: nn.Conv2d(3, 8, 1), lambda: nn.PixelShuffle(2)), image),
    "pad": (lambda: nn.ZeroPad2d(1), image),
    "flatten, linear": (chain(nn.Flatten, lambda: nn.Linear(432, 4)), image),
    "add, mul, div": (of(lambda x, y: (x + y) * x / y), pair),
    "matmul": (of(lambda x, y: x @ y.transpose(0, 1)), pair),
    "mean, var": (of(lambda x: x.mean(-1) + x.var(-1)), rows),
    "cat, split": (of(lambda x, y: torch.cat([x, y], 1).split(4, 1)[1]), pair),
    "slice, stack": (of(lambda x: torch.stack([x[:, :4], x[:, 4:]])), rows),
    "cumsum": (of(lambda x: torch.cumsum(x, -1)), rows),
    "topk": (of(lambda x: torch.topk(x, 3).values), rows),
    "where, comparison": (of(lambda x, y: torch.where(x > y, x, y)), pair),
    "clamp, abs, sqrt": (of(lambda x: x.clamp(0.5, 2).abs().sqrt()), rows),
    "trigonometry": (of(lambda x: torch.sin(x) + torch.atan2(x, x + 1)), rows),
    "rank 6": (of(lambda x: x.reshape(1, 2, 2, 2, 2, 1).permute(0, 2, 1, 3, 4, 5).reshape(2, 8) * 2), rows),
    "cast": (of(lambda x: x.to(torch.float32) / 255), image),
    "updated buffer": (Counter, rows),
    "no inputs": (of(lambda: torch.arange(4) * 2), lambda: ()),
}  # fmt: skip

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
    "int64": torch.int64,
    "uint8": torch.uint8,
}


def build(name: str, dtype: torch.dtype, samples: int) -> tuple[nn.Module, list[tuple[Tensor, ...]]]:
    """The module of a case with its weights at a data type, and inputs of that type.

    Args:
        name: A key of `CORPUS`.
        dtype: Of the inputs, and of the weights where it is a floating-point type.
        samples: How many inputs to draw.
    """
    torch.manual_seed(len(name))
    module, draw = CORPUS[name]
    model = module().eval()
    if dtype.is_floating_point:
        model = model.to(dtype)
    return model, [tuple(value.to(dtype) for value in draw()) for _ in range(samples)]
