"""Write the generated parts of these pages: `python docs/generate.py`, or `--check` to only compare.

A generated part stands between `<!-- begin NAME -->` and `<!-- end NAME -->`.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

import click

import recipes
from recipes.cli.app import cli
from recipes.common import errors, findings
from recipes.plugins import hookspecs
from recipes.plugins.provider import RecipeProvider
from recipes.plugins.targets import TargetExtension, order_components
from recipes.recipe.policies import FIELD_POLICIES, Policy

DOCS = Path(__file__).parent
PLUGINS = DOCS.parent / "plugins"
LINE = 100
"""Characters; a signature that is longer gets a line for each parameter."""


def policy_table() -> str:
    """The policy of every field, as a Markdown table, and the rule that each policy stands for."""
    rules = table(("policy", "rule"), ((_words(policy), policy.value) for policy in Policy))
    rows = []
    for key, policy in FIELD_POLICIES.items():
        owner, _, name = key.partition(".")
        rows.append((f"`{owner}`", f"`{name}`", _words(policy)))
    return f"{rules}\n\n{table(('dataclass', 'field', 'policy'), rows)}"


def _words(policy: Policy) -> str:
    return policy.name.lower().replace("_", " ")


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    head = list(columns)
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows)])


@cache
def plugin_modules() -> dict[str, ModuleType]:
    """The plugins that live beside core, by name: what their entry points name, installed or not."""
    found = {}
    for folder in sorted(PLUGINS.iterdir()):
        if (folder / "pyproject.toml").is_file():
            sys.path.append(str(folder / "src"))
            found[folder.name] = importlib.import_module(f"recipes_{folder.name}.plugin")
    return found


def providers() -> list[RecipeProvider]:
    """Every provider of these plugins."""
    return [
        provider
        for module in plugin_modules().values()
        if hasattr(module, "recipes_register_providers")
        for provider in module.recipes_register_providers()
    ]


def options_table() -> str:
    """The options of every recipe type, one row for those that are equal."""
    rows = []
    for provider in providers():
        recipe_types = provider.get_supported_recipes()
        declared: dict[tuple[str, ...], list[str]] = {}
        for recipe_type in recipe_types:
            for option in provider.describe(recipe_type).options:
                default = (
                    "required" if option.required else "unset" if option.default is None else f"`{option.default}`"
                )
                row: tuple[str, ...] = (f"`{option.name}`", option.expects, default, option.help)
                declared.setdefault(row, []).append(f"`{recipe_type.id}`")
        for row, ids in declared.items():
            whose = f"all of `{provider.backend_name}`" if len(ids) == len(recipe_types) else ", ".join(ids)
            rows.append((whose, *row))
    return table(("recipes", "option", "value", "default", "what it does"), rows)


def features_table() -> str:
    """The lowest system of each Core ML feature, with where that is written."""
    from recipes_coreml import features

    found = [value for value in vars(features).values() if isinstance(value, features.Feature)]
    return table(("feature", "needs", "source"), ((f.what, f.needs, f"<{f.source}>") for f in found))


def recipes_table() -> str:
    """Every recipe type with what it does."""
    rows = []
    for provider in providers():
        for recipe_type in provider.get_supported_recipes():
            info = provider.describe(recipe_type)
            calibrates = "yes" if info.needs_calibration else ""
            member = f"`{type(recipe_type).__name__}.{recipe_type.name}`"
            row = (f"`{recipe_type.id}`", member, info.summary, info.weights, info.activations, calibrates)
            rows.append((*row, info.deployment_target, ", ".join(f"`{option.name}`" for option in info.options)))
    columns = ("id", "member", "what it does", "weights", "activations", "calibration", "lowest system", "options")
    return table(columns, rows)


def targets_table() -> str:
    """Every target of these plugins with its components in partitioning order, as if all of them were installed."""
    declared = {
        name: module.recipes_register_targets()
        for name, module in plugin_modules().items()
        if hasattr(module, "recipes_register_targets")
    }
    extensions = [
        (name, item) for name, items in declared.items() for item in items if isinstance(item, TargetExtension)
    ]
    rows = {}
    for plugin, items in declared.items():
        for profile in items:
            if isinstance(profile, TargetExtension):
                continue
            components = [
                f"`{component.recipe}` ({component.role}{'' if component.required else ', optional'})"
                for _, component in order_components(plugin, profile, extensions)
            ]
            default = "yes" if profile.default else ""
            rows[profile.name] = (
                f"`{profile.name}`",
                ", ".join(components),
                default,
                f"`recipes-{plugin}`",
                profile.summary,
            )
    columns = ("target", "components, in partitioning order", "default", "from", "what it is")
    return table(columns, (rows[name] for name in sorted(rows)))


_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Warns):\n((?:    .*\n?|\n)*)", re.MULTILINE)
_ITEM = re.compile(r"^(\S[^:]*): ")


def described(documented: Any, arguments: str = "Arguments") -> str:
    """A docstring as Markdown.

    Args:
        documented: What has the docstring.
        arguments: What to call its arguments.
    """
    text = inspect.getdoc(documented)
    if not text:
        raise SystemExit(f"{documented!r} has no docstring.")
    prose, *_ = _SECTION.split(text, maxsplit=1)
    parts = [prose.strip()]
    for section, body in _SECTION.findall(text):
        content = inspect.cleandoc(body)
        title = arguments if section == "Args" else section
        if section == "Returns":
            parts.append(f"{title}: {' '.join(content.split())}")
            continue
        items = re.sub(r"\n\s+", " ", content).splitlines()
        parts.append(f"{title}:\n\n" + "\n".join(_ITEM.sub(r"- `\1`: ", item) for item in items if item))
    return "\n\n".join(parts)


class _Annotation(str):
    """An annotation that a signature shows as it stands in the source, without quotes."""

    def __repr__(self) -> str:
        return str(self)


def signature(name: str, called: Callable[..., Any], skip: int = 0) -> str:
    """A signature as an indented block of code.

    Args:
        name: What is called.
        called: What to take the parameters of.
        skip: How many of them to leave out at the start, such as `self`.
    """
    found = inspect.signature(called)
    parameters = [_shown(parameter) for parameter in list(found.parameters.values())[skip:]]
    result = "" if found.return_annotation in (found.empty, "None") else f" -> {found.return_annotation}"
    line = f"{name}{inspect.Signature(parameters)}{result}"
    if len(line) > LINE:
        words = []
        for parameter, before in zip(parameters, [None, *parameters], strict=False):
            kinds = (before.kind if before else None, parameter.kind)
            if kinds[1] is parameter.KEYWORD_ONLY and kinds[0] not in (
                parameter.KEYWORD_ONLY,
                parameter.VAR_POSITIONAL,
            ):
                words.append("*")
            words.append(str(parameter))
        line = f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){result}"
    return "\n".join(f"    {part}" for part in line.splitlines())


def _shown(parameter: inspect.Parameter) -> inspect.Parameter:
    """A parameter whose annotation is shown as in the source; the others' would differ between versions of Python."""
    known = isinstance(parameter.annotation, str)
    return parameter.replace(annotation=_Annotation(parameter.annotation) if known else parameter.empty)


def entry(name: str, value: Any) -> str:
    """What there is to say of one public name: its signature, its docstring, and its members."""
    if not value.__module__.startswith("recipes"):
        return f"### `{name}`\n\nExecuTorch's own: `{value.__module__}.{name}`, so that one import line serves."
    if not isinstance(value, type):
        return "\n\n".join([f"### `{name}`", signature(name, value), described(value)])
    ours = not issubclass(value, enum.Enum) and "__init__" in _defined(value)
    parts = [f"### `{name}`"]
    if ours and all(isinstance(p.annotation, str) for p in inspect.signature(value).parameters.values()):
        parts.append(signature(name, value))
    parts.append(described(value, "Fields" if dataclasses.is_dataclass(value) else "Arguments"))
    parts += [f"**`{name}.{member}`**{rest}" for member, rest in _members(value)]
    return "\n\n".join(parts)


def _members(owner: type) -> Iterator[tuple[str, str]]:
    """The public methods and properties that a class defines, each with the rest of its entry."""
    for name, member in _defined(owner).items():
        if name.startswith(("_", "test_")):
            continue
        if isinstance(member, property):
            yield name, f": {described(member)}"
            continue
        called = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if inspect.isfunction(called):
            skip = 0 if isinstance(member, staticmethod) else 1
            yield name, f"\n\n{signature(name, called, skip)}\n\n{described(called)}"


def _defined(owner: type) -> dict[str, Any]:
    """What a class and those of its bases that are ours define."""
    ours = [each for each in reversed(owner.__mro__) if each.__module__.startswith("recipes.")]
    return {name: member for each in ours for name, member in vars(each).items()}


def _public() -> dict[str, Any]:
    return {name: getattr(recipes, name) for name in recipes.__all__}


def _is_error(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, errors.RecipesError | errors.RecipesWarning)


def functions() -> str:
    """Every public function."""
    return "\n\n".join(entry(name, value) for name, value in _public().items() if inspect.isfunction(value))


# What a plugin declares with; it has a page of its own.
_FOR_PLUGINS = (
    "RecipeProvider",
    "RecipeType",
    "RecipeInfo",
    "Option",
    "OptionValue",
    "Availability",
    "TargetProfile",
    "TargetExtension",
    "Component",
    "ModelFacts",
    "Finding",
)


def classes() -> str:
    """Every public class but the errors and what plugins declare with."""
    found = {n: v for n, v in _public().items() if isinstance(v, type) and not _is_error(v) and n not in _FOR_PLUGINS}
    return "\n\n".join(entry(name, value) for name, value in found.items())


def plugin_classes() -> str:
    """What a plugin declares with."""
    return "\n\n".join(entry(name, getattr(recipes, name)) for name in _FOR_PLUGINS)


def hooks() -> str:
    """Every hook with its arguments and what it returns."""
    found = {name: hook for name, hook in vars(hookspecs).items() if name.startswith("recipes_")}
    return "\n\n".join(f"### `{name}`\n\n{signature(name, hook)}\n\n{described(hook)}" for name, hook in found.items())


def conformance() -> str:
    """The class that tests plugins: what to set, and its tests."""
    from recipes.testing import PluginConformance

    tests = [name for name in _defined(PluginConformance) if name.startswith("test_")]
    parts = ["### `PluginConformance`", described(PluginConformance)]
    for name, rest in _members(PluginConformance):
        if name != "pytest_generate_tests":
            parts.append(f"**`PluginConformance.{name}`**{rest}")
    listed = "\n".join(f"- `{name}`" for name in tests)
    return "\n\n".join([*parts, f"Its tests, which expected failures name:\n\n{listed}"])


def error_classes() -> str:
    """Every error and warning, with what it derives from."""
    found = {value for module in (errors, findings) for value in vars(module).values() if _is_error(value)}
    found |= {value for value in _public().values() if _is_error(value)}
    parts = []
    for value in sorted(found, key=lambda value: value.__name__):
        bases = ", ".join(f"`{base.__name__}`" for base in value.__bases__)
        parts.append(f"### `{value.__name__}`\n\n{described(value)}\n\nDerives from {bases}.")
    return "\n\n".join(parts)


def commands() -> str:
    """Every command with its help, its arguments and its options."""
    return "\n\n".join(_command(words, command) for words, command in _walk("recipes", cli))


def _walk(words: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield words, command
    for name, child in sorted(command.commands.items() if isinstance(command, click.Group) else ()):
        yield from _walk(f"{words} {name}", child)


def _command(words: str, command: click.Command) -> str:
    parts = [f"## `{' '.join([words, *_arguments(command)])}`"]
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b"):  # click keeps the lines of such a paragraph
            for is_code, lines in itertools.groupby(paragraph.splitlines()[1:], lambda line: line.startswith("  ")):
                parts.append("\n".join(f"    {line.strip()}" if is_code else line for line in lines))
        else:
            parts.append(paragraph)
    options = [_option(option) for option in command.params if isinstance(option, click.Option)]
    parts.append(table(("option", "what it does"), options))
    return "\n\n".join(parts)


def _arguments(command: click.Command) -> Iterator[str]:
    for argument in command.params:
        if isinstance(argument, click.Argument) and argument.name:
            yield argument.name.upper() if argument.required else f"[{argument.name.upper()}]"


def _option(option: click.Option) -> tuple[str, str]:
    value = "" if option.is_flag else f" {option.metavar or option.type.name.upper()}"
    names = ", ".join(f"`{name}{value}`" for name in [*option.opts, *option.secondary_opts])
    required = " Required." if option.required else ""
    return names, f"{option.help or ''}{required}"


def rooms() -> str:
    """The rooms of core in the order of import-linter's contract, each with the first line of its docstring."""
    settings = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (c for c in settings["tool"]["importlinter"]["contracts"] if c["id"] == "rooms")
    layers = [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]
    width = max(len(name) for layer in layers for name in layer)
    blocks = [
        "\n".join(f"    {name:{width}}  {line}" for name in layer for line in [_purpose(name)]) for layer in layers
    ]
    return "\n    |\n".join(blocks).replace("\n    |\n", "\n    " + " " * (width // 2) + "|\n")


def _purpose(room: str) -> str:
    """What the first line of a room's docstring says, without importing it."""
    core = DOCS.parent / "core" / "src" / "recipes"
    path = core / room / "__init__.py" if (core / room).is_dir() else core / f"{room}.py"
    documented = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return documented.splitlines()[0]


GENERATED: dict[str, dict[str, Callable[[], str]]] = {
    "architecture.md": {"rooms": rooms},
    "merge.md": {"policies": policy_table},
    "options.md": {"options": options_table, "features": features_table},
    "reference/api.md": {"functions": functions, "classes": classes},
    "reference/commands.md": {"commands": commands},
    "reference/errors.md": {"errors": error_classes},
    "reference/hooks.md": {"hooks": hooks, "classes": plugin_classes},
    "reference/recipes.md": {"recipes": recipes_table},
    "reference/testing.md": {"conformance": conformance},
    "reference/targets.md": {"targets": targets_table},
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
