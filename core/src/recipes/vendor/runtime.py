"""What this host's ExecuTorch runtime can execute; queried in a separate process, because it imports torch."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

TIMEOUT = 120.0
"""Seconds for the runtime to start; importing torch may take tens of them from a cold disk."""


@dataclass(frozen=True)
class Runtime:
    """ExecuTorch's runtime on this host.

    Args:
        backends: The backends that are built into it, and whether each reports that it is available.
        problem: Why it could not be queried; empty when it could.
    """

    backends: Mapping[str, bool] = field(default_factory=dict)
    problem: str = ""


def ask_runtime(timeout: float = TIMEOUT) -> Runtime:
    """Start the runtime in a separate process, and return its backends; this takes seconds.

    Args:
        timeout: How many seconds to wait for it.
    """
    for module in ("executorch", "torch"):
        if importlib.util.find_spec(module) is None:
            return Runtime(problem=f"{module} is not installed")
    # The process must use the runtime of this environment, however the environment was set up.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-m", "recipes.runner.backends"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=timeout, env=environment
        )
    except subprocess.TimeoutExpired:
        return Runtime(problem=f"it did not start within {timeout:g} s")
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    if done.returncode != 0 or not lines:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        return Runtime(problem=f"it did not start: {said[-1] if said else f'exit code {done.returncode}'}")
    return Runtime(json.loads(lines[-1]))  # what libraries print comes before it
