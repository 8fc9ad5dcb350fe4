"""Run methods of a program: `python -m recipes.runner.methods REQUEST RESPONSE`, both files of `torch.save`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

from recipes.runner.loading import runtime as load_runtime


def _answer(request_path: str, response_path: str) -> None:
    runtime = load_runtime()
    request = torch.load(request_path, weights_only=True)
    if any(name.startswith("quantized_decomposed::") for need in request["needs"].values() for name in need["kernels"]):
        import executorch.kernels.quantized  # noqa: F401 - registers the kernels of what is left outside delegates
    registered = sorted(runtime.backend_registry.registered_backend_names)
    kernels = runtime.operator_registry.operator_names
    answer: dict[str, Any] = {"registered": registered, "methods": {}}

    def tell() -> None:
        # The file is written again after each method, because the next one may crash.
        torch.save(answer, f"{response_path}.part")
        os.replace(f"{response_path}.part", response_path)

    tell()
    program = None
    for method, calls in request["calls"].items():
        need = request["needs"][method]
        run: dict[str, Any] = {
            "missing_backends": tuple(name for name in need["backends"] if name not in registered),
            "missing_kernels": tuple(name for name in need["kernels"] if name not in kernels),
            "outputs": [],
            "error": "",
        }
        answer["methods"][method] = run
        if not run["missing_backends"] and not run["missing_kernels"]:
            where = "loading"
            try:
                if program is None:
                    program = runtime.load_program(Path(request["path"]), data_path=request["data_path"])
                loaded = program.load_method(method)
                assert loaded is not None
                for number, inputs in enumerate(calls, 1):
                    where = f"call {number}"
                    run["outputs"].append([_copied(value) for value in loaded.execute(inputs)])
            except Exception as error:
                run["error"] = f"{where} failed: {error}"
        tell()


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


if __name__ == "__main__":
    _answer(*sys.argv[1:])
