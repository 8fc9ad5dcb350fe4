"""Whether two programs are equal but for what differs every time: Core ML's identifiers and its date."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import coremltools as ct
from executorch.backends.apple.coreml import executorchcoreml


def assert_equal_programs(ours: Any, theirs: Any, folder: Path) -> None:
    """Compare two programs, as `deserialize_pte_binary` reads them; their payloads are taken out.

    Args:
        ours: A program.
        theirs: Another one.
        folder: An absent folder to unpack into.
    """
    payloads = [_take_payloads(program, folder / name) for name, program in (("ours", ours), ("theirs", theirs))]
    assert payloads[0], "nothing was delegated"
    assert payloads[0] == payloads[1]
    assert ours == theirs


def _take_payloads(program: Any, folder: Path) -> dict[str, Any]:
    """Take the payloads out of a program; gives them by method, position and backend."""
    delegates = [
        (f"{plan.name} {number} {delegate.id}", program.backend_delegate_data[delegate.processed.index])
        for plan in program.execution_plan
        for number, delegate in enumerate(plan.delegates)
    ]
    found: dict[str, Any] = {}
    for name, blob in delegates:
        payload = bytes(blob.data)
        found[name] = normal_files(payload, folder / name) if "CoreMLBackend" in name else payload
        assert payload, f"{name} has no payload"
    for _, blob in delegates:
        blob.data = b""
    return found


def normal_files(payload: bytes, folder: Path) -> dict[str, Any]:
    """The files of a payload without what differs from one export to the next: random identifiers and the date."""
    folder.mkdir(parents=True)
    assert executorchcoreml.unflatten_directory_contents(payload, str(folder))
    files: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir():
            continue
        if path.name == "Manifest.json":
            manifest = json.loads(path.read_text())
            root = manifest.pop("rootModelIdentifier")
            items = manifest.pop("itemInfoEntries")
            files[name] = (manifest, items[root], sorted(items.values(), key=lambda item: item["path"]))
        elif path.name == "metadata.json":
            metadata = json.loads(path.read_text())
            assert metadata.pop("identifier").startswith("executorch_")
            files[name] = metadata
        elif path.suffix == ".mlmodel":
            spec = ct.models.utils.load_spec(str(path))
            del spec.description.metadata.userDefined["com.github.apple.coremltools.conversion_date"]
            files[name] = spec.SerializeToString(deterministic=True)
        else:
            files[name] = path.read_bytes()
    return files
