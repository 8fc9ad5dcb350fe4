"""Compare outputs with those of the model in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from recipes.common import as_text, table

if TYPE_CHECKING:
    from rich.console import Group


LOW_SQNR = 10.0
"""dB; below it, the error's power is more than a tenth of the output's, which is too much for any use of a model."""


@dataclass(frozen=True)
class Sample:
    """One tuple of arguments of a method's forward.

    Args:
        label: A name for messages: `example 1`, `s0=8`.
        inputs: The arguments.
        is_made_up: Whether the values were generated, so that the outputs of a model may be meaningless.
    """

    label: str
    inputs: tuple[Any, ...]
    is_made_up: bool = False


@dataclass(frozen=True)
class Comparison:
    """One output of a method, compared with the model's in PyTorch over all samples.

    Args:
        method: The method.
        what: What was compared: the program on this host, or the quantized model in PyTorch.
        output: The output's position.
        samples: How many samples were compared.
        sqnr_db: The lowest ratio of signal to error power, in dB; None if all outputs are equal.
        max_abs_error: The largest absolute error.
        cosine: The lowest cosine between the outputs.
        worst: The sample with the lowest ratio.
    """

    method: str
    what: str
    output: int
    samples: int
    sqnr_db: float | None
    max_abs_error: float
    cosine: float
    worst: str


@dataclass
class Verification:
    """What was compared, what was run, what was not run and why, and what failed; print it, or use its `to_dict()`.

    Args:
        comparisons: Comparisons with the model in PyTorch.
        ran: What was run on this host, in sentences.
        not_run: What was not run, and why.
        concerns: Results that are probably not good enough.
        failures: Results that are wrong.
    """

    comparisons: list[Comparison] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    concerns: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there are no failures; see `not_run` for what was not checked."""
        return not self.failures

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return {"ok": self.ok, **asdict(self)}

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        parts: list[Any] = []
        if self.comparisons:
            columns = ("method", "compared", "output#", "samples#", "SQNR dB#", "max error#", "cosine#", "worst at")
            rows = [
                (
                    c.method,
                    c.what,
                    c.output,
                    c.samples,
                    "equal" if c.sqnr_db is None else f"{c.sqnr_db:.1f}",
                    f"{c.max_abs_error:.3g}",
                    f"{c.cosine:.5f}",
                    c.worst,
                )
                for c in self.comparisons
            ]
            parts.append(table("Compared with the model in PyTorch", columns, rows))
        named = {"Ran": self.ran, "Not run": self.not_run, "Concerns": self.concerns, "Failures": self.failures}
        for title, lines in named.items():
            if lines:
                parts.append(Group(Text(title, style="bold"), *(Text(f"- {line}") for line in lines)))
        return Group(*(item for part in parts for item in (part, "")))

    def __str__(self) -> str:
        return as_text(self)


def compare(
    method: str,
    what: str,
    samples: Sequence[Sample],
    outputs: Sequence[Sequence[Any]],
    expected: Sequence[Sequence[Any]],
    result: Verification,
) -> None:
    if len(outputs[0]) != len(expected[0]):
        counts = f"{len(outputs[0])} outputs, but the model returns {len(expected[0])}"
        result.failures.append(f"Method {method!r}: the {what} returns {counts}.")
        return
    for index in range(len(expected[0])):
        measured: list[tuple[float, float, float, str]] = []
        for sample, got, wanted in zip(samples, outputs, expected, strict=False):
            if not isinstance(wanted[index], torch.Tensor):
                if got[index] != wanted[index]:
                    result.failures.append(
                        f"Method {method!r}, output {index} at {sample.label}: the {what} returns {got[index]!r}, "
                        f"but the model {wanted[index]!r}."
                    )
                continue
            if got[index].shape != wanted[index].shape:
                result.failures.append(
                    f"Method {method!r}, output {index} at {sample.label}: the {what} returns the shape "
                    f"{list(got[index].shape)}, but the model {list(wanted[index].shape)}."
                )
                continue
            measured.append((*_errors(got[index], wanted[index]), sample.label))
        if not measured:
            continue
        lowest = min(measured)
        sqnr = None if math.isinf(lowest[0]) and lowest[0] > 0 else lowest[0]
        error, cosine = max(m[1] for m in measured), min(m[2] for m in measured)
        result.comparisons.append(
            Comparison(method, what, index, len(measured), sqnr, error, cosine, "" if sqnr is None else lowest[3])
        )
        if sqnr is not None and sqnr < LOW_SQNR:
            result.concerns.append(
                f"Method {method!r}, output {index}: the {what} is {sqnr:.1f} dB from the model at {lowest[3]}; "
                f"below {LOW_SQNR:g} dB little of the signal is left."
            )


def _errors(got: torch.Tensor, wanted: torch.Tensor) -> tuple[float, float, float]:
    """Signal-to-error ratio in dB (infinite where equal), largest absolute error, and cosine."""
    both = torch.isfinite(got) & torch.isfinite(wanted)
    left, right = got[both].double(), wanted[both].double()
    error = left - right
    noise, signal = float(error.square().sum()), float(right.square().sum())
    if noise == 0:
        return math.inf, 0.0, 1.0
    # A model that returns zeros has no signal, so the ratio is minus infinity, which JSON does not have.
    sqnr = 10 * math.log10(signal / noise) if signal else -999.0
    norms = float(left.norm() * right.norm())
    return sqnr, float(error.abs().max()), float(left @ right) / norms if norms else 0.0
