"""Read a saved program, with or without its manifest, and show what is inside."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.artifact.manifest import ManifestState, described_inputs, read_manifest
from recipes.common import as_text, size, table
from recipes.executorch import Contents, Method, contents_of_file

if TYPE_CHECKING:
    from rich.console import Group


@dataclass(frozen=True)
class Inspection:
    """What is inside a saved program; print it, or use its `to_dict()`.

    Args:
        path: The `.pte` file.
        contents: What is inside.
        state: The manifest, and whether it belongs to this program.
    """

    path: Path
    contents: Contents
    state: ManifestState

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return {
            "file": str(self.path),
            **self.contents.to_dict(),
            "manifest": self.state.manifest,
            "manifest_problem": self.state.problem,
        }

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        parts: list[Any] = [Text(f"{self.path}  {size(self.contents.size)}", style="bold")]
        if self.state.problem:
            parts.append(Text(f"The manifest does not describe this program: {self.state.problem}", style="yellow"))
        elif self.state.manifest is not None:
            parts.append(self._made_of(self.state.manifest))
        named = described_inputs(self.state) if not self.state.problem else {}
        for method in self.contents.methods:
            parts.append(_method(method, named.get(method.name)))
        needs = [("backends", ", ".join(self.contents.backends) or "none")]
        needs.append(("kernels", ", ".join(self.contents.kernels) or "none"))
        parts.append(table("An app must link", ("what", "names"), needs))
        rows = [(part, f"{count:,}") for part, count in self.contents.sizes.items()]
        parts.append(table("Size", ("part", "bytes#"), rows))
        return Group(*(item for part in parts for item in (part, "")))

    def _made_of(self, manifest: dict[str, Any]) -> Group:
        rows = [
            ("recipe", manifest["recipe"]["name"]),
            ("fingerprint", manifest["fingerprint"]),
            ("versions", ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())),
        ]
        rows += [("data file", f"{file['file']}  {size(file['bytes'])}") for file in manifest["data_files"]]
        return table("Made with", ("what", "value"), rows)

    def __str__(self) -> str:
        return as_text(self)


def _method(method: Method, named: list[dict[str, Any]] | None) -> Group:
    rows = []
    for index, value in enumerate(method.inputs):
        told = named[index] if named is not None and index < len(named) else None
        ranges = ", ".join(_range(dynamic) for dynamic in told["dynamic"]) if told else ""
        rows.append((f"input {index}", f"{told['name']}: {value}" if told else str(value), ranges))
    rows += [(f"output {index}", str(value), "") for index, value in enumerate(method.outputs)]
    rows += [
        (f"delegate {index}", delegate.backend, f"payload {size(delegate.payload)}")
        for index, delegate in enumerate(method.delegates)
    ]
    rows += [("kernel", name, f"{count} calls") for name, count in method.kernels.items()]
    rows += [(f"arena {number}", f"{count:,} bytes", "") for number, count in enumerate(method.memory, 1)]
    return table(f"Method {method.name}", ("part", "what", "details"), rows)


def _range(dynamic: dict[str, Any]) -> str:
    return f"size {dynamic['dim']} from {dynamic['min']} to {'any' if dynamic['max'] is None else dynamic['max']}"


def inspect_program(path: str | os.PathLike[str]) -> Inspection:
    """Read a saved program, and its manifest if there is one. No backend is needed, and no weights are loaded.

    A save that was interrupted is completed first, so that the program and its manifest belong together.

    Args:
        path: The `.pte` file.

    Raises:
        ArgumentError: There is no such file, it is not a program, or it is damaged.
        SaveError: A save of the program was interrupted and cannot be completed.
    """
    program = Path(path)
    state = read_manifest(program)
    return Inspection(program, contents_of_file(program), state)
