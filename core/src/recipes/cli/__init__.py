"""The command line: `recipes targets`, `show`, `plugins` and `export`."""

from recipes.cli.app import main as main

__all__ = ["main"]
