"""`recipes doctor`: what is installed, which parts work, and what must be fixed."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import importlib_metadata
import pytest
from click.testing import CliRunner, Result

from recipes import Registry
from recipes.cli.app import cli
from recipes.vendor import doctor, runtime
from recipes.vendor.runtime import Runtime

Install = Callable[..., Path]

ACME = """
    from recipes import Availability, Component, RecipeInfo, RecipeProvider, RecipeType, TargetExtension, TargetProfile
    from recipes import hookimpl

    class Kind(RecipeType):
        FP32 = "acme_fp32"

        @classmethod
        def get_backend_name(cls):
            return "acme"

    class Acme(RecipeProvider):
        backend_name = "acme"

        def get_supported_recipes(self):
            return list(Kind)

        def describe(self, recipe_type):
            return RecipeInfo("Float32.", "float32", "float32")

        def availability(self):
            return AVAILABILITY

        def build_recipe(self, recipe_type, options):
            raise AssertionError("doctor must not build")

    AVAILABILITY = Availability(True)
    TARGETS = [TargetProfile("linux-x86_64-acme-fp32", (Component("acme:fp32"),))]

    @hookimpl
    def recipes_register_providers():
        return [Acme()]

    @hookimpl
    def recipes_register_targets():
        return TARGETS
"""

HERE = Runtime({"AcmeBackend": True, "OtherBackend": False})


def acme(**changes: str) -> str:
    """The plugin with other values for AVAILABILITY or TARGETS."""
    lines = ACME.splitlines()
    for name, value in changes.items():
        (number,) = [i for i, line in enumerate(lines) if line.startswith(f"    {name} = ")]
        lines[number] = f"    {name} = {value}"
    return "\n".join(lines)


def extension(before: str = "", targets: str = "*", recipe: str = "acme:fp32") -> str:
    return f"[TargetExtension({targets!r}, Component({recipe!r}, 'fallback', required=False), {before!r})]"


OWNER = """
    from recipes import Component, TargetProfile, hookimpl

    @hookimpl
    def recipes_register_targets():
        cpu = Component("cpu:fp32", "fallback", required=False)
        return [TargetProfile("ios-arm64-chip-fp32", (Component("chip:fp32"), cpu))]
"""


@pytest.fixture(autouse=True)
def _runtime_as_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime is asked for in one test; elsewhere it has the backends of HERE."""
    monkeypatch.setattr(doctor, "ask_runtime", lambda: HERE)


@pytest.fixture
def registry(plugin_site: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry]:
    """Make a registry of what is installed in `plugin_site`; the keywords are the environment."""
    monkeypatch.syspath_prepend(str(plugin_site))

    def make(**environ: str) -> Registry:
        found = importlib_metadata.distributions(path=[str(plugin_site)])
        return Registry([e for dist in found for e in dist.entry_points if e.group == "recipes"], environ)

    return make


def run(registry: Registry, *words: str) -> Result:
    return CliRunner().invoke(cli, ["doctor", *words], obj=registry, env={"COLUMNS": "150"})


def record(registry: Registry, *words: str) -> dict[str, Any]:
    """What `--json` prints; the exit code is 1 exactly where it says that a person is needed."""
    result = run(registry, "--json", *words)
    found: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == int(found["needs_a_person"]), result.output
    return found


def codes(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(finding["level"], finding["code"]) for finding in found["findings"]]


def test_where_all_is_well_it_tells_versions_plugins_backends_and_that_nothing_needs_fixing(
    installed_plugin: Install, registry: Callable[..., Registry]
) -> None:
    installed_plugin("acme", ACME, version="2.5")
    result = run(registry())
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["recipes-acme", "2.5"] in lines
    assert any(line[:2] == ["acme", "ok"] and line[-1] == "acme" for line in lines)
    assert "AcmeBackend: reports that it can execute" in result.stdout
    assert "OtherBackend: cannot execute" in result.stdout
    assert result.stdout.splitlines()[-1] == "Nothing needs fixing."
    assert "takes seconds" in result.stderr


def test_as_json_it_has_the_documented_keys(installed_plugin: Install, registry: Callable[..., Registry]) -> None:
    installed_plugin("acme", acme(AVAILABILITY="Availability(False, 'no chip', 'buy one')"))
    found = record(registry())
    help_text = run(registry(), "--help").stdout
    keys = {*found, *found["runtime"], *found["targets"][0], "seconds", "heavy_imports", "way_out"}
    assert [key for key in keys if key not in help_text] == []
    assert found["distributions"]["recipes-acme"] == "1.0"
    assert set(found["distributions"]) == {"recipes-core", "executorch", "torch", "torchao", "recipes-acme"}
    assert found["runtime"] == {"backends": {"AcmeBackend": True, "OtherBackend": False}, "problem": ""}
    (row,) = found["plugins"]
    assert row["backends"] == [{"name": "acme", "available": False, "reason": "no chip", "hint": "buy one"}]
    assert 0 < row["seconds"] < 60


def test_a_toolchain_that_is_missing_is_told_with_what_mends_it_and_needs_no_person(
    installed_plugin: Install, registry: Callable[..., Registry]
) -> None:
    installed_plugin("acme", acme(AVAILABILITY="Availability(False, 'acme_sdk is not installed', 'pip install sdk')"))
    found = record(registry())
    assert (found["needs_a_person"], found["findings"]) == (False, [])
    target = "linux-x86_64-acme-fp32"
    reason = "acme:fp32: acme_sdk is not installed"
    assert found["targets"] == [{"name": target, "state": "unavailable", "reason": reason, "hint": "pip install sdk"}]
    page = run(registry()).stdout
    assert f"{target} (unavailable)" in page
    assert page.count("-> pip install sdk") == 2


def test_a_broken_plugin_needs_a_person_and_names_stage_reason_and_way_out(
    installed_plugin: Install, registry: Callable[..., Registry]
) -> None:
    installed_plugin("acme", ACME)
    installed_plugin("bad", "raise RuntimeError('no licence')")
    found = record(registry())
    assert codes(found) == [("error", "unusable-plugin")]
    (finding,) = found["findings"]
    assert finding["where"] == "plugin 'bad' (recipes-bad 1.0)"
    assert "broken at import: RuntimeError: no licence" in finding["message"]
    assert "RECIPES_DISABLE=bad" in finding["way_out"]
    page = run(registry()).stdout
    assert "error: plugin 'bad' (recipes-bad 1.0): it is broken at import: RuntimeError: no licence" in page
    assert "Nothing needs fixing" not in page


@pytest.mark.parametrize("state", ["incompatible", "conflict"])
def test_an_incompatible_plugin_and_a_conflict_need_a_person(
    state: str, installed_plugin: Install, registry: Callable[..., Registry]
) -> None:
    installed_plugin("acme", ACME, requires=["recipes-core>=99"] if state == "incompatible" else [])
    if state == "conflict":
        installed_plugin("rival", ACME)
    found = record(registry())
    assert set(codes(found)) == {("error", "unusable-plugin")}
    words = "it is in conflict at" if state == "conflict" else "it is incompatible at"
    assert all(words in finding["message"] for finding in found["findings"])


def test_a_plugin_that_is_switched_off_needs_nobody(
    installed_plugin: Install, registry: Callable[..., Registry]
) -> None:
    installed_plugin("acme", ACME)
    installed_plugin("bad", "raise RuntimeError('no licence')")
    result = run(registry(RECIPES_DISABLE="bad"))
    assert result.exit_code == 0
    assert "switched off by RECIPES_DISABLE=bad" in result.stdout


@pytest.mark.parametrize("variable", ["RECIPES_DISABLE", "RECIPES_ONLY"])
def test_a_name_in_the_environment_that_no_plugin_has_needs_a_person(
    variable: str, installed_plugin: Install, registry: Callable[..., Registry]
) -> None:
    installed_plugin("acme", ACME)
    found = record(registry(**{variable: "acem"}))
    assert codes(found) == [("error", "unknown-plugin-name")]
    assert (found["findings"][0]["where"], found["findings"][0]["way_out"]) == (variable, "Plugins here: acme.")
    message = found["findings"][0]["message"]
    assert "names 'acem', but no installed plugin has that name. Did you mean 'acme'?" in message


@pytest.mark.parametrize(
    "line",
    [
        "import heavy_toolchain",
        "from heavy_toolchain.part3 import Thing",
        "import torch",
        "import recipes_acme_inner",
    ],
)
def test_a_plugin_that_imports_something_heavy_when_listed_needs_a_person_and_is_not_refused(
    line: str,
    installed_plugin: Install,
    registry: Callable[..., Registry],
    plugin_site: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (plugin_site / "torch.py").write_text("class Tensor: pass")
    (plugin_site / "recipes_acme_inner.py").write_text("import torch")
    toolchain = plugin_site / "heavy_toolchain"
    toolchain.mkdir()
    for number in range(60):
        (toolchain / f"part{number}.py").write_text("class Thing: pass")
    (toolchain / "__init__.py").write_text("\n".join(f"import heavy_toolchain.part{n}" for n in range(60)))
    installed_plugin("acme", f"{line}\n" + ACME.replace("\n    ", "\n"))
    installed_plugin("light", "import json, click\nfrom recipes import hookimpl\n" + hookimpl_of("[]"))
    for name in [name for name in sys.modules if name == "torch" or name.startswith("torch.")]:
        monkeypatch.delitem(sys.modules, name)
    found = record(registry())
    assert codes(found) == [("error", "heavy-plugin")]
    heavy = "heavy_toolchain" if "toolchain" in line else "torch"
    assert f"listing it imports {heavy}," in found["findings"][0]["message"]
    assert {row["name"]: (row["state"], row["heavy_imports"]) for row in found["plugins"]} == {
        "acme": ("ok", [heavy]),
        "light": ("ok", []),
    }


def hookimpl_of(targets: str) -> str:
    return f"@hookimpl\ndef recipes_register_targets(): return {targets}\n"


def test_a_heavy_import_is_seen_even_where_somebody_else_imported_it_before(
    installed_plugin: Install, registry: Callable[..., Registry], plugin_site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name == "torch" or name.startswith("torch.")]:
        monkeypatch.delitem(sys.modules, name)
    (plugin_site / "torch.py").write_text("class Tensor: pass")
    for name, line in {"first": "import torch", "second": "import torch", "third": "from torch import Tensor"}.items():
        installed_plugin(name, f"{line}\nfrom recipes import hookimpl\n{hookimpl_of('[]')}")
    scanned = registry()
    assert {row.name: row.heavy_imports for row in scanned.list_plugins()} == dict.fromkeys(
        ("first", "second", "third"), ("torch",)
    )
    scanned.refresh()
    assert {row.heavy_imports for row in scanned.list_plugins()} == {("torch",)}


def test_what_a_plugin_imported_to_build_a_recipe_is_not_held_against_it_by_a_later_scan(
    installed_plugin: Install, registry: Callable[..., Registry], plugin_site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name == "torch" or name.startswith("torch.")]:
        monkeypatch.delitem(sys.modules, name)
    (plugin_site / "torch.py").touch()
    installed_plugin("acme", f"from recipes import hookimpl\n{hookimpl_of('[]')}")
    package = plugin_site / "recipes_acme"
    package.mkdir()
    (plugin_site / "recipes_acme.py").rename(package / "__init__.py")
    (package / "build.py").write_text("import torch")
    scanned = registry()
    assert scanned.list_plugins()[0].heavy_imports == ()
    importlib.import_module("recipes_acme.build")
    scanned.refresh()
    assert scanned.list_plugins()[0].heavy_imports == ()


def test_a_module_that_a_plugin_holds_to_load_it_later_is_not_loaded_by_looking(
    installed_plugin: Install, registry: Callable[..., Registry], plugin_site: Path
) -> None:
    (plugin_site / "acme_lazy.py").write_text("raise AssertionError('loaded')")
    installed_plugin("acme", f"from recipes import hookimpl\nfrom recipes_acme import inner\n{hookimpl_of('[]')}")
    package = plugin_site / "recipes_acme"
    package.mkdir()
    (plugin_site / "recipes_acme.py").rename(package / "__init__.py")
    (package / "inner.py").write_text(
        "import importlib.util\n"
        "spec = importlib.util.find_spec('acme_lazy')\n"
        "spec.loader = importlib.util.LazyLoader(spec.loader)\n"
        "lazy = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(lazy)\n"
    )
    (row,) = registry().list_plugins()
    assert (row.state, row.heavy_imports) == ("ok", ())
    assert "recipes_acme.inner" in sys.modules


def test_a_plugin_that_takes_longer_than_a_second_needs_a_person(
    installed_plugin: Install, registry: Callable[..., Registry]
) -> None:
    # It measures time, so time must pass: a little more than what is put up with.
    installed_plugin("slow", f"import time\nfrom recipes import hookimpl\ntime.sleep(1.1)\n{hookimpl_of('[]')}")
    found = record(registry())
    assert codes(found) == [("error", "slow-plugin")]
    assert found["plugins"][0]["seconds"] > doctor.SLOW
    assert "RECIPES_DISABLE=slow" in found["findings"][0]["way_out"]


def test_with_a_name_it_looks_at_that_plugin_and_its_targets_only(
    installed_plugin: Install, registry: Callable[..., Registry]
) -> None:
    installed_plugin("acme", acme(TARGETS=extension(targets="ios-arm64-*"), AVAILABILITY="Availability(False, 'off')"))
    installed_plugin("bad", "raise RuntimeError('no licence')")
    installed_plugin("owner", OWNER)
    installed_plugin("zulu", OWNER.replace("ios-arm64-chip", "linux-x86_64-zulu").replace('"cpu', '"zulu'))
    found = record(registry(), "acme")
    assert [row["name"] for row in found["plugins"]] == ["acme"]
    assert [target["name"] for target in found["targets"]] == ["ios-arm64-chip-fp32"]
    assert codes(found) == []
    assert codes(record(registry(), "bad")) == [("error", "unusable-plugin")]
    assert "recipes-owner" not in found["distributions"]


def test_an_unknown_plugin_is_wrong_use_told_with_the_nearest_before_anything_slow(
    installed_plugin: Install, registry: Callable[..., Registry]
) -> None:
    installed_plugin("acme", ACME)
    result = run(registry(), "acem")
    assert (result.exit_code, result.stdout) == (2, "")
    expected = "Error: No installed plugin is called 'acem'. Did you mean 'acme'? Plugins here: acme.\n"
    assert result.stderr == expected


def test_strict_does_not_stop_it(installed_plugin: Install, registry: Callable[..., Registry]) -> None:
    installed_plugin("acme", ACME)
    installed_plugin("bad", "raise RuntimeError('no licence')")
    found = record(registry(RECIPES_STRICT="1"))
    assert {row["name"]: row["state"] for row in found["plugins"]} == {"acme": "ok", "bad": "broken"}


def test_nothing_is_warned_of_beside_the_page(installed_plugin: Install, registry: Callable[..., Registry]) -> None:
    installed_plugin("bad", "print('hello')\nraise RuntimeError('no licence')")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = run(registry(RECIPES_DISABLE="nobody"), "--json")
    assert json.loads(result.stdout)["needs_a_person"] is True
    assert "warning" not in result.stderr


def test_without_any_plugin_it_says_what_to_install(registry: Callable[..., Registry]) -> None:
    found = record(registry())
    assert codes(found) == [("warning", "no-plugins")]
    assert "pip install recipes-" in found["findings"][0]["message"]
    assert run(registry(), "acme").exit_code == 2


@pytest.mark.parametrize(
    ("targets", "code", "words"),
    [
        (extension(targets="ios-arm46-*"), "idle-extension", ["'ios-arm46-*'", "matches no target"]),
        (extension(targets="ios-arm64-chap-fp32"), "idle-extension", ["Did you mean 'ios-arm64-chip-fp32'"]),
        (extension(before="cup"), "unknown-before", ["before 'cup'", "Did you mean 'cpu'?", "goes last"]),
        (extension(before="chip"), "unknown-before", ["before 'chip'", "as fallback"]),
        (extension(recipe="cpu:fp32"), "idle-extension", ["adds nothing"]),
    ],
)
def test_an_extension_that_does_not_do_what_it_says_is_told_and_needs_nobody(
    targets: str, code: str, words: list[str], installed_plugin: Install, registry: Callable[..., Registry]
) -> None:
    installed_plugin("owner", OWNER)
    installed_plugin("acme", acme(TARGETS=targets))
    found = record(registry())
    assert codes(found) == [("warning", code)]
    (finding,) = found["findings"]
    assert finding["where"] == "plugin 'acme' (recipes-acme 1.0)"
    assert [word for word in words if word not in finding["message"]] == []
    assert finding["way_out"]


@pytest.mark.parametrize("before", ["", "cpu"])
def test_an_extension_that_joins_is_not_told(
    before: str, installed_plugin: Install, registry: Callable[..., Registry]
) -> None:
    installed_plugin("owner", OWNER)
    installed_plugin("acme", acme(TARGETS=extension(before)))
    assert codes(record(registry())) == []


def test_a_runtime_that_does_not_start_is_told_and_needs_nobody(
    installed_plugin: Install, registry: Callable[..., Registry], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed_plugin("acme", ACME)
    monkeypatch.setattr(doctor, "ask_runtime", lambda: Runtime(problem="torch is not installed"))
    found = record(registry())
    assert codes(found) == [("warning", "no-runtime")]
    assert "torch is not installed" in found["findings"][0]["message"]
    assert "pip install recipes-core" in found["findings"][0]["way_out"]


def test_a_runtime_that_fails_or_hangs_is_a_problem_and_not_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").touch()
    package = tmp_path / "executorch"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in [name for name in sys.modules if name.partition(".")[0] in ("torch", "executorch")]:
        monkeypatch.delitem(sys.modules, name)
    assert "No module named 'executorch.runtime'" in runtime.ask_runtime().problem
    (package / "runtime.py").write_text("import os; os._exit(9)")
    assert runtime.ask_runtime().problem == "it did not start: exit code 9"
    (package / "runtime.py").write_text("import time; time.sleep(60)")
    assert runtime.ask_runtime(timeout=1).problem == "it did not start within 1 s"


@pytest.mark.skipif(importlib.util.find_spec("executorch") is None, reason="asks ExecuTorch's own runtime")
def test_the_runtime_here_is_asked_in_a_process_of_its_own(installed_plugin: Install, plugin_site: Path) -> None:
    installed_plugin("acme", ACME)
    code = "import sys; from recipes.cli.app import cli; cli(['doctor', '--json'], standalone_mode=False)\n"
    code += "print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        env={
            **os.environ,
            "RECIPES_ONLY": "acme",
            "PYTHONPATH": os.pathsep.join([str(plugin_site), os.environ.get("PYTHONPATH", "")]),
        },
    )
    text, _, imported = done.stdout.rstrip().rpartition("\n")
    assert imported == "False"
    found = json.loads(text)
    assert found["runtime"]["problem"] == ""
    assert found["runtime"]["backends"]["XnnpackBackend"] is True
