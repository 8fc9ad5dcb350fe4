"""Export every module of the corpus at every data type with every recipe that the targets are made of.

    python tests/corpus/run.py --write docs/corpus.md [--target TARGET] [--dtype DTYPE] [--only NAME]

Each export must end in one of two ways: a file (whose numbers are right, where its backends run on this
host), or a refusal before the work with findings that name the cause. Anything else is a fault, and the
exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

TARGETS = (
    # One of each recipe: targets that differ in the system alone are made of the same recipes.
    "ios-arm64-coreml-fp32",
    "ios-arm64-coreml-fp16",
    "ios-arm64-coreml-int8",
    "linux-x86_64-xnnpack-fp32",
    "linux-x86_64-xnnpack-int8",
)
LEAST_DB = {"float32": 60.0, "float64": 60.0, "float16": 30.0, "bfloat16": 18.0}
"""The least signal to noise that a float file may have against eager at its own data type."""
LEAST_INT8_DB = 12.0
RIGHT, MADE, REFUSED, FAULT = "right", "made", "refused", "FAULT"


def outcome(name: str, dtype: str, target: str) -> tuple[str, str]:
    """How one export ends, and what to say of it."""
    import torch
    from modules import DTYPES, build  # type: ignore[import-not-found]  # beside this file

    from recipes import ArgumentError, MissingKernelError, PreflightError, RecipesWarning, export

    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    model, samples = build(name, DTYPES[dtype], samples=4)
    told: list[str] = []
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", RecipesWarning)
                session = export(copy.deepcopy(model), target, samples)
            told = [str(w.message) for w in caught if issubclass(w.category, RecipesWarning)]
            return _compare(session, model, samples[0], dtype, target, told)
    except (PreflightError, ArgumentError) as error:
        findings = getattr(error, "findings", ())
        return REFUSED, "; ".join(finding.code for finding in findings if finding.level == "error") or str(error)
    except MissingKernelError as error:
        return REFUSED, "missing-kernel: " + "; ".join(str(error).splitlines()[1:-1]).strip()
    except Exception as error:
        return FAULT, f"{type(error).__name__}: {str(error).strip()[:300]}"


def _compare(session: Any, model: Any, inputs: Any, dtype: str, target: str, told: list[str]) -> tuple[str, str]:
    import executorch.kernels.quantized  # noqa: F401  # the kernels that an app with partly quantized models links
    import torch
    from executorch.runtime import Runtime

    runtime = Runtime.get()
    delegates = {d.id for d in session.get_executorch_program().execution_plan[0].delegates}
    fell_back = sorted({fallback.op for fallback in session.fallbacks})
    note = f"not on the backend: {', '.join(fell_back)}" if fell_back else ""
    missing = [d for d in delegates if not runtime.backend_registry.is_available(d)]
    if missing:
        return MADE, note
    program = runtime.load_program(session.get_pte_buffer())
    found = program.load_method("forward").execute(list(inputs))[0]
    expected = copy.deepcopy(model)(*inputs)
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return FAULT, f"gives {found.dtype}{list(found.shape)}, eager {expected.dtype}{list(expected.shape)}"
    if not expected.is_floating_point():
        steps = int((found.long() - expected.long()).abs().max()) if found.numel() else 0
        words = "; ".join(filter(None, (f"differs by {steps}" if steps else "", note)))
        return (RIGHT if steps <= 1 else FAULT), words  # one step: rounding in an interpolation
    noise = (found.double() - expected.double()).pow(2).sum()
    ratio = float(10 * torch.log10(expected.double().pow(2).sum() / noise)) if noise > 0 else float("inf")
    least = LEAST_INT8_DB if target.endswith("int8") else LEAST_DB[dtype if dtype in LEAST_DB else "float32"]
    words = f"{ratio:.0f} dB" + (f"; {note}" if note else "")
    return (RIGHT, words) if ratio >= least else (FAULT, words)


Job = tuple[str, str, str]


def outcomes(jobs: list[Job], processes: int) -> Iterator[tuple[Job, tuple[str, str]]]:
    """The outcome of each job, in order; a job that ends its process is a fault, and the others go on."""
    context = get_context("spawn")
    while jobs:
        with ProcessPoolExecutor(processes, mp_context=context) as pool:
            futures = [pool.submit(outcome, name, dtype, target) for target, name, dtype in jobs]
            for done, (job, future) in enumerate(zip(jobs, futures, strict=True)):
                try:
                    yield job, future.result()
                except BrokenProcessPool:
                    yield job, _alone(job)
                    jobs = jobs[done + 1 :]
                    break
            else:
                return


def _alone(job: Job) -> tuple[str, str]:
    target, name, dtype = job
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(outcome, name, dtype, target).result()
        except BrokenProcessPool:
            return FAULT, "the process was ended"


def table(results: dict[str, dict[str, dict[str, list[str]]]]) -> str:
    """The results as a page."""
    lines = []
    for target, by_name in results.items():
        dtypes = list(next(iter(by_name.values())))
        counts = Counter(cell[0] for row in by_name.values() for cell in row.values())
        lines += [f"\n## {target}\n", ", ".join(f"{count} {word}" for word, count in sorted(counts.items())) + ".\n"]
        lines += ["| module | " + " | ".join(dtypes) + " |", "|---|" + "---|" * len(dtypes)]
        for name, row in by_name.items():
            cells = [": ".join(filter(None, row[dtype])).replace("|", "/").replace("\n", " ") for dtype in dtypes]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


PREFACE = """# Corpus

Small modules of common layers, exported at six data types with every recipe that the targets are made of.
Each export ends in one of these ways:

- **right**: the file was run on the host that made this table, and its numbers agree with eager; the signal to
  noise is given in dB.
- **made**: the file was made, and its backend does not run on that host (Core ML runs on Apple devices only).
- **refused**: before the work, with the codes of the findings that name the cause.

Repeat it with `nox -s corpus`.
"""


def main() -> int:
    from modules import CORPUS, DTYPES

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="write the table to this page")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--target", action="append", choices=TARGETS)
    parser.add_argument("--dtype", action="append", choices=list(DTYPES))
    parser.add_argument("--only", action="append", choices=list(CORPUS))
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    jobs = [
        (target, name, dtype)
        for target in args.target or TARGETS
        for name in args.only or CORPUS
        for dtype in args.dtype or DTYPES
    ]
    results: dict[str, dict[str, dict[str, list[str]]]] = {}
    for (target, name, dtype), (word, said) in outcomes(jobs, args.jobs):
        results.setdefault(target, {}).setdefault(name, {})[dtype] = [word, said]
        print(f"{word:8} {target} {dtype} {name}: {said}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if args.write:
        args.write.write_text(PREFACE + table(results), encoding="utf-8")
    return int(any(cell[0] == FAULT for by in results.values() for row in by.values() for cell in row.values()))


if __name__ == "__main__":
    sys.exit(main())
