"""Everything that has a name is on a page: hooks, errors, targets, options, commands, environment variables."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click

import recipes
from recipes import list_plugins, list_targets
from recipes.cli.app import cli

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def reference(page: str) -> str:
    return (DOCS / "reference" / page).read_text(encoding="utf-8")


def test_every_hook_is_documented() -> None:
    from recipes.plugins import hookspecs

    hooks = [name for name in vars(hookspecs) if name.startswith("recipes_")]
    assert hooks
    assert [name for name in hooks if f"### `{name}`" not in reference("hooks.md")] == []


def test_every_public_name_is_documented() -> None:
    pages = "".join(map(reference, ("api.md", "errors.md", "hooks.md")))
    headings = set(re.findall(r"^### `(\w+)`", pages, re.MULTILINE))
    assert {name for name in recipes.__all__ if name not in headings} == set()


def test_every_error_is_documented() -> None:
    from recipes.common import errors, findings

    classes = [
        value
        for module in (errors, findings)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, errors.RecipesError | errors.RecipesWarning)
    ]
    assert len(classes) > 10
    assert [c.__name__ for c in classes if f"### `{c.__name__}`" not in reference("errors.md")] == []


def test_every_target_recipe_and_option_is_documented() -> None:
    targets, types, options = reference("targets.md"), reference("recipes.md"), (DOCS / "options.md").read_text()
    ours = {row.name for row in list_plugins() if (ROOT / "plugins" / row.name).is_dir()}
    assert ours >= {"coreml", "openvino", "xnnpack"}
    listed = [target for target in list_targets(include_unavailable=True) if target.plugin in ours]
    assert [target.name for target in listed if f"`{target.name}`" not in targets] == []
    for recipe in recipes.list_recipes():
        if recipe.plugin in ours:
            assert f"`{recipe.id}`" in types
            assert [o.name for o in recipe.info.options if f"`{o.name}`" not in options] == []


def walked(command: click.Command, words: tuple[str, ...] = ("recipes",)) -> Iterator[tuple[str, click.Command]]:
    """Every command below a group, with the words that call it."""
    yield " ".join(words), command
    for name, child in sorted(getattr(command, "commands", {}).items()):
        yield from walked(child, (*words, name))


def test_every_command_and_each_of_its_options_is_documented() -> None:
    page = reference("commands.md")
    found = dict(walked(cli))
    assert set(found) >= {"recipes", "recipes export", "recipes targets", "recipes verify"}
    for words, command in found.items():
        assert f"`{words}" in page
        section = page.partition(f"## `{words}")[2].partition("\n## ")[0]
        names = [name for parameter in command.params for name in parameter.opts if isinstance(parameter, click.Option)]
        assert [name for name in names if f"`{name}" not in section] == [], words


def test_every_example_in_a_command_s_help_is_a_command_that_it_takes() -> None:
    found = dict(walked(cli))
    tried = 0
    for command in found.values():
        for line in re.findall(r"^\s+(?:[A-Z_]+=\S+ )?(recipes .*)$", command.help or "", re.MULTILINE):
            words = shlex.split(line.partition(" | ")[0])
            called = max((w for w in found if line.startswith(w)), key=len)
            found[called].make_context("example", words[len(called.split()) :], resilient_parsing=False)
            tried += 1
    assert tried > 10


def test_every_environment_variable_is_documented() -> None:
    sources = [*(ROOT / "core/src").rglob("*.py"), *(ROOT / "plugins").glob("*/src/**/*.py")]
    found = {name for path in sources for name in re.findall(r'"(RECIPES_[A-Z_]+)"', path.read_text())}
    assert found >= {"RECIPES_DISABLE", "RECIPES_ONLY", "RECIPES_STRICT", "RECIPES_DEBUG"}
    assert {name for name in found if f"`{name}`" not in reference("environment.md")} == set()


def test_every_code_of_a_finding_is_on_the_page_on_checks() -> None:
    page = (DOCS / "checks.md").read_text()
    sources = [*(ROOT / "core/src").rglob("*.py"), *(ROOT / "plugins").glob("*/src/*/*.py")]
    found = set()
    for path in sources:
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Finding":
                constants = [n.value for n in ast.walk(call.args[1]) if isinstance(n, ast.Constant)]
                found |= {value for value in constants if isinstance(value, str)}
    assert len(found) > 10
    assert {code for code in found if f"| `{code}` |" not in page} == set()


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


def test_links_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("plugins/*/README.md"), *DOCS.rglob("*.md")]:
        for link in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.relative_to(ROOT)}: {link}"
