"""The passes of one recipe that is merged with others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recipes.common import RecipeConflictError

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, eq=False)
class GuardedPasses:
    """An edge transform of one of several recipes; it refuses a pass manager when it is called.

    ExecuTorch lets a pass manager silently replace the passes of every other recipe. Which kind
    a transform returns is known only when it is called. It equals the callable that it guards.

    Args:
        function: The recipe's own `(method name, program) -> passes`.
        recipe: The recipe that it came from.
    """

    function: Callable[[str, Any], Any]
    recipe: str

    def __call__(self, method: str, program: Any) -> Any:
        passes = self.function(method, program)
        if is_pass_manager(passes):
            raise RecipeConflictError(
                f"In method {method!r}, an edge_transform_passes callable of {self.recipe} returns a "
                f"{type(passes).__name__}, next to the edge_transform_passes of other recipes, which ExecuTorch "
                "would drop. Let it return a list of passes, or use that recipe alone."
            )
        return passes

    def __eq__(self, other: object) -> bool:
        return bool(self.function == (other.function if isinstance(other, GuardedPasses) else other))

    def __hash__(self) -> int:
        return hash(self.function)


def is_pass_manager(value: object) -> bool:
    """Whether it is one of the pass managers of torch or ExecuTorch."""
    from torch.fx.passes.infra.pass_manager import PassManager

    return isinstance(value, PassManager)
