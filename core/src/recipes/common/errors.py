"""Every error that recipes raises on purpose.

All derive from `RecipesError`, and from the built-in class that a caller would expect. The message is one block that
names the object at fault and says what to do. The command line prints it unchanged.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any


class RecipesError(Exception):
    """Base of every error raised by recipes and its plugins."""


class RecipesWarning(UserWarning):
    """Something works, but not as asked or not as well as it could: a broken plugin, an empty result."""


class PluginError(RecipesError, ImportError):
    """A required plugin cannot be used; the message names the plugin, its distribution, the stage and the reason."""


class UnknownPluginError(RecipesError, LookupError):
    """No plugin of that name is installed."""


class UnknownTargetError(RecipesError, LookupError, ValueError):
    """No installed plugin declares a target of that name."""


class UnknownRecipeError(RecipesError, LookupError, ValueError):
    """No installed plugin provides that recipe type."""


class TargetUnavailableError(RecipesError, ImportError):
    """A target is known, but something that it requires is missing, broken or not supported on this host."""


class BackendUnavailableError(RecipesError, ImportError):
    """A backend's plugin is installed, but its toolchain does not work on this host."""


class OptionError(RecipesError, ValueError, TypeError):
    """An option is unknown, of the wrong type, out of range, or contradicts another one."""


class RecipeConflictError(RecipesError, ValueError):
    """Recipes cannot be merged; the message names the field, each recipe with its value, and what to do."""


class UnknownFieldError(RecipeConflictError):
    """A recipe sets a field that this version has no policy for, so a merge would lose its value."""


class ArgumentError(RecipesError, ValueError, TypeError):
    """An argument of `export` (or of another public function) is missing, misplaced or of the wrong kind."""


class SaveError(RecipesError, OSError):
    """A file could not be written; the file that was there before is unchanged."""


class ExportError(RecipesError, RuntimeError):
    """A stage of an export failed; `stage` names it and `__cause__` is the original exception.

    Args:
        message: The full message.
        stage: The stage's name, as in `executorch.export.StageType`.
    """

    def __init__(self, message: str, stage: str = "") -> None:
        super().__init__(message)
        self.stage = stage


class ExportManyError(RecipesError, RuntimeError):
    """Some of several exports of one model failed; the others are complete.

    Args:
        sessions: The sessions that succeeded, by target.
        failures: The exception of each target that failed, by target.
    """

    def __init__(self, sessions: Mapping[str, Any], failures: Mapping[str, BaseException]) -> None:
        lines = [f"{len(failures)} of {len(sessions) + len(failures)} exports failed; `sessions` has the others."]
        lines += [f"{target}: {error}" for target, error in failures.items()]
        super().__init__("\n".join(lines))
        self.sessions = dict(sessions)
        self.failures = dict(failures)


class MissingKernelError(ExportError):
    """ExecuTorch has no kernel for operators that no backend took, so the file could not run anywhere.

    Args:
        message: The full message.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, "to_executorch")


def nearest(word: str, known: Iterable[str], most: int = 3) -> list[str]:
    """The names among `known` that look most like `word`, best first, whatever their case.

    Args:
        word: The name to look for.
        known: The names that exist.
        most: How many names to return at most.
    """
    by_folded = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(word.casefold(), list(by_folded), n=most, cutoff=0.6)
    return [by_folded[name] for name in close]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` Did you mean 'a' or 'b'?` (with a leading space), or an empty string where no name is close."""
    close = nearest(word, known)
    return f" Did you mean {' or '.join(repr(name) for name in close)}?" if close else ""
