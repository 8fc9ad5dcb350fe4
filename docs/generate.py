"""Write the generated parts of these pages: `python docs/generate.py`, or `--check` to only compare.

A generated part stands between `<!-- begin NAME -->` and `<!-- end NAME -->`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from recipes.merge import FIELD_POLICIES
from recipes.policies import Policy

DOCS = Path(__file__).parent


def policy_table() -> str:
    """The policy of every field, as a Markdown table, and the rule that each policy stands for."""
    lines = ["| policy | rule |", "|---|---|"]
    lines += [f"| {_words(policy)} | {policy.value} |" for policy in Policy]
    lines += ["", "| dataclass | field | policy |", "|---|---|---|"]
    for key, policy in FIELD_POLICIES.items():
        owner, _, name = key.partition(".")
        lines.append(f"| `{owner}` | `{name}` | {_words(policy)} |")
    return "\n".join(lines)


def _words(policy: Policy) -> str:
    return policy.name.lower().replace("_", " ")


def options_table() -> str:
    """The options of every recipe type of the plugins that live beside core, as Markdown tables."""
    from recipes_coreml.plugin import recipes_register_providers as coreml_providers
    from recipes_xnnpack.plugin import recipes_register_providers as xnnpack_providers

    providers = [*coreml_providers(), *xnnpack_providers()]
    lines = ["| recipes | option | value | default | what it does |", "|---|---|---|---|---|"]
    for provider in providers:
        recipe_types = provider.get_supported_recipes()
        declared: dict[str, list[str]] = {}
        for recipe_type in recipe_types:
            for option in provider.describe(recipe_type).options:
                default = (
                    "required" if option.required else "unset" if option.default is None else f"`{option.default}`"
                )
                row = f"`{option.name}` | {option.expects} | {default} | {option.help} |"
                declared.setdefault(row, []).append(f"`{recipe_type.id}`")
        for row, ids in declared.items():
            whose = f"all of `{provider.backend_name}`" if len(ids) == len(recipe_types) else ", ".join(ids)
            lines.append(f"| {whose} | {row}")
    return "\n".join(lines)


def features_table() -> str:
    """The lowest system of each Core ML feature, with where that is written."""
    from recipes_coreml import features

    found = [value for value in vars(features).values() if isinstance(value, features.Feature)]
    lines = ["| feature | needs | source |", "|---|---|---|"]
    lines += [f"| {feature.what} | {feature.needs} | <{feature.source}> |" for feature in found]
    return "\n".join(lines)


GENERATED: dict[str, dict[str, Callable[[], str]]] = {
    "merge.md": {"policies": policy_table},
    "options.md": {"options": options_table, "features": features_table},
}
"""For each page: its generated parts by name."""


def generated(page: str, text: str) -> str:
    """A page's text with its generated parts made anew.

    Args:
        page: A key of `GENERATED`.
        text: The page as it is.
    """
    for name, make in GENERATED[page].items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        before, found_begin, rest = text.partition(begin)
        _, found_end, after = rest.partition(end)
        if not (found_begin and found_end):
            raise SystemExit(f"docs/{page} has no part between {begin} and {end}")
        text = f"{before}{begin}\n{make()}\n{end}{after}"
    return text


def main(arguments: list[str]) -> int:
    """Write every page, or with `--check` tell which are out of date; the exit code."""
    stale = []
    for page in GENERATED:
        path = DOCS / page
        text = path.read_text(encoding="utf-8")
        made = generated(page, text)
        if made != text:
            stale.append(page)
            if "--check" not in arguments:
                path.write_text(made, encoding="utf-8")
    if stale and "--check" in arguments:
        print(f"Out of date: {', '.join(stale)}. Run: python docs/generate.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
