"""Print which backends the runtime of this host has, as a line of JSON: `python -m recipes.runner.backends`."""

from __future__ import annotations

import json

from recipes.runner.loading import runtime


def _tell() -> None:
    registry = runtime().backend_registry
    names = sorted(registry.registered_backend_names)
    print(f"\n{json.dumps({name: registry.is_available(name) for name in names})}")


if __name__ == "__main__":
    _tell()
