"""Run a program with ExecuTorch's runtime in a separate process, which a crash of a delegate may end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from recipes.executorch import Contents


Inputs = Sequence[Any]
"""The arguments of one call, flat, as the runtime takes them."""


@dataclass(frozen=True)
class MethodRun:
    """How one method ran.

    Args:
        outputs: The flat outputs of each call that succeeded.
        missing_backends: Backends that the method needs and the runtime lacks; if there are any, nothing was run.
        missing_kernels: The same for operators.
        error: Why a call, or loading, failed; empty if all calls succeeded.
    """

    outputs: list[list[Any]] = field(default_factory=list)
    missing_backends: tuple[str, ...] = ()
    missing_kernels: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class ProgramRun:
    """How a program ran.

    Args:
        methods: How each method ran, of those that were started.
        registered: The backends that the runtime of this host has.
        crash: How the process ended; empty if it succeeded.
    """

    methods: dict[str, MethodRun]
    registered: tuple[str, ...] = ()
    crash: str = ""


def run_program(
    path: Path, data_path: Path | None, contents: Contents, calls: Mapping[str, Sequence[Inputs]], timeout: float
) -> ProgramRun:
    """Run methods of a program, one call after another.

    Args:
        path: The `.pte` file.
        data_path: The `.ptd` file that it needs, or None.
        contents: What is inside the program.
        calls: For each method, the inputs of each call.
        timeout: Seconds after which the process is stopped.
    """
    needs = {
        method.name: {
            "backends": sorted({delegate.backend for delegate in method.delegates}),
            "kernels": sorted(method.kernels),
        }
        for method in contents.methods
    }
    with tempfile.TemporaryDirectory(prefix="recipes-") as folder:
        request, response = Path(folder, "request"), Path(folder, "response")
        data = None if data_path is None else str(data_path)
        detached = {method: [_detached(inputs) for inputs in samples] for method, samples in calls.items()}
        torch.save({"path": str(path), "data_path": data, "needs": needs, "calls": detached}, request)
        command = [sys.executable, "-m", "recipes.runner.methods", str(request), str(response)]
        # The process must use the runtime of this environment, however the environment was set up.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=timeout, env=environment
            )
            crash = _ending(done.returncode, done.stderr)
        except subprocess.TimeoutExpired:
            crash = f"it was stopped after {timeout:g} s"
        answer = torch.load(response, weights_only=True) if response.exists() else {}
    methods = {name: MethodRun(**run) for name, run in answer.get("methods", {}).items()}
    return ProgramRun(methods, tuple(answer.get("registered", ())), crash)


def _detached(inputs: Inputs) -> list[Any]:
    return [value.detach().contiguous() if isinstance(value, torch.Tensor) else value for value in inputs]


def _ending(code: int, stderr: str) -> str:
    if code == 0:
        return ""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    last = f": {lines[-1]}" if lines else ""
    if code < 0:
        return f"the runtime crashed with {signal.Signals(-code).name}{last}"
    return f"the runtime's process ended with exit code {code}{last}"
