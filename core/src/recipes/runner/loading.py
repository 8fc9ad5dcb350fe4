"""ExecuTorch's runtime without its compiler, which takes two thirds of the time to import and is not used here."""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import Any

_COMPILER = "executorch.exir"


def runtime() -> Any:
    """The runtime of this host.

    Its bindings take a class of warnings from a module in the compiler's package, and so import all of the compiler.
    They find the package empty instead; where that is not enough for a release, they get the real one.
    """
    spec = importlib.util.find_spec("executorch")
    assert spec is not None
    empty = types.ModuleType(_COMPILER)
    empty.__path__ = [f"{folder}/exir" for folder in spec.submodule_search_locations or ()]
    sys.modules[_COMPILER] = empty
    try:
        from executorch.runtime import Runtime
    except (AttributeError, ImportError):
        for name in [name for name in sys.modules if name.startswith("executorch.")]:
            del sys.modules[name]
        from executorch.runtime import Runtime
    return Runtime.get()
