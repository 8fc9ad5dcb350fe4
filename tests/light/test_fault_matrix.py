"""Every fault that a plugin can have, all at once beside good plugins: each is a row, and none harms another."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

GOOD = ("recipes-core", "recipes-coreml", "recipes-xnnpack")

SLEEP = 1.5
"""Seconds that the slow plugin takes: more than the one second that `recipes doctor` puts up with."""

PROVIDER = """
from recipes import Availability, Component, RecipeInfo, RecipeProvider, RecipeType, TargetExtension, TargetProfile
from recipes import hookimpl

class Kind(RecipeType):
    FP32 = "fp32"

    @classmethod
    def get_backend_name(cls):
        return {backend!r}

class Provider(RecipeProvider):
    backend_name = {backend!r}

    def get_supported_recipes(self):
        return list(Kind)

    def describe(self, recipe_type):
        return RecipeInfo("Float32.", "float32", "float32")

    def availability(self):
        return {availability}

    def build_recipe(self, recipe_type, options):
        raise AssertionError("listing must not build")

@hookimpl
def recipes_register_providers():
    return [Provider()]
"""
TARGETS = """
@hookimpl
def recipes_register_targets():
    return {targets}
"""
HOOK = """
from recipes import hookimpl

@hookimpl
def {hook}({arguments}):
    {body}
"""


def provider(backend: str, targets: str = "[]", availability: str = "Availability(True)") -> str:
    return PROVIDER.format(backend=backend, availability=availability) + TARGETS.format(targets=targets)


def hook(body: str, name: str = "recipes_register_targets", arguments: str = "") -> str:
    return HOOK.format(hook=name, body=body, arguments=arguments)


def profile(name: str, component: str) -> str:
    return f"[TargetProfile({name!r}, (Component({component!r}),))]"


@dataclass(frozen=True)
class Fault:
    """A plugin with one fault.

    Args:
        source: The text of its module.
        state: The state of its row.
        words: What the row's reason must say, so that a person can act on it.
        distribution: The distribution that it comes in; `recipes-<name>` by default.
        requires: The distribution's requirements.
        files: Files of its `.dist-info` that are not as they should be: their bytes, or None where there is none.
    """

    source: str
    state: str = "broken"
    words: Sequence[str] = ()
    distribution: str = ""
    requires: Sequence[str] = ()
    files: dict[str, bytes | None] = field(default_factory=dict)


SHARED = "linux-x86_64-shared-fp32"
TWO_BACKENDS = ("backend 'duo'", "recipes-backend_one 1.0", "recipes-backend_two 1.0")
TWO_TARGETS = (f"target '{SHARED}'", "recipes-target_one 1.0", "recipes-target_two 1.0")
TWO_NAMES = ("recipes-twin 1.0", "other-twin 1.0", "uninstall all but one")

FAULTS: list[tuple[str, Fault]] = [
    ("import_error", Fault("import nonexistent_toolchain", words=["ModuleNotFoundError", "nonexistent_toolchain"])),
    ("exit_at_import", Fault("raise SystemExit('goodbye')", words=["SystemExit: goodbye", "line 1"])),
    ("hook_raises", Fault(hook("raise RuntimeError('no licence')"), words=["RuntimeError: no licence", "line 6"])),
    (
        "hook_returns_wrong_type",
        Fault(hook("return {'ios': 1}"), words=["must return a list of TargetProfile or TargetExtension, not dict"]),
    ),
    ("hook_argument", Fault(hook("return []", arguments="weather"), words=["weather", "recipes_register_targets"])),
    ("hook_misspelt", Fault(hook("return []", "recipes_register_target"), words=["Did you mean 'recipes_register_t"])),
    ("twin", Fault(provider("twin"), "conflict", TWO_NAMES)),
    ("twin", Fault(provider("twin"), "conflict", TWO_NAMES, distribution="other-twin")),
    ("backend_one", Fault(provider("duo"), "conflict", TWO_BACKENDS)),
    ("backend_two", Fault(provider("duo"), "conflict", TWO_BACKENDS)),
    ("target_one", Fault(provider("one", profile(SHARED, "one:fp32")), "conflict", TWO_TARGETS)),
    ("target_two", Fault(provider("two", profile(SHARED, "two:fp32")), "conflict", TWO_TARGETS)),
    (
        "lost_recipe",
        Fault(
            provider("lost", profile("linux-x86_64-lost-fp32", "xnnpack:fp61")),
            words=["'linux-x86_64-lost-fp32'", "'xnnpack:fp61'", "Did you mean 'xnnpack:fp32'"],
        ),
    ),
    (
        "lost_extension",
        Fault(
            provider("joins", "[TargetExtension('*', Component('joins:fp61', 'fallback', required=False))]"),
            words=["extension of '*'", "'joins:fp61'", "Did you mean 'joins:fp32'"],
        ),
    ),
    (
        "old_core",
        Fault(
            "raise AssertionError",
            "incompatible",
            ["recipes-core>=99", "recipes-core 0."],
            requires=["recipes-core>=99"],
        ),
    ),
    (
        "old_executorch",
        Fault("raise AssertionError", "incompatible", ["executorch<1", "executorch 1."], requires=["executorch<1"]),
    ),
    (
        "no_toolchain",
        Fault(
            provider(
                "chip",
                profile("linux-x86_64-chip-fp32", "chip:fp32"),
                "Availability.of_host(modules={'chip_sdk': 'chip-sdk==2'})",
            ),
            "ok",
        ),
    ),
    (
        "unsure",
        Fault(provider("unsure", profile("linux-x86_64-unsure-fp32", "unsure:fp32"), "Availability(False)"), "ok"),
    ),
    ("heavy", Fault("import torch\n" + provider("heavy"), "ok")),
    ("slow", Fault(hook(f"import time; time.sleep({SLEEP}); return []"), "ok")),
    ("noisy", Fault("print('hello from a plugin')\n" + provider("noisy"), "ok")),
    (
        "texts",
        Fault(
            provider("texts", "[TargetProfile('a-b-c-d', ('a:b',))]"),
            words=["'a-b-c-d'", "'a:b'", "not a recipes.Component"],
        ),
    ),
    (
        "no_text",
        Fault("class Odd(Exception):\n    def __str__(self): raise self\nraise Odd", words=["Odd: its text", "line 3"]),
    ),
    ("no_metadata", Fault("raise AssertionError", words=["unreadable", "reinstall"], files={"METADATA": None})),
    (
        "no_version",
        Fault(
            "raise AssertionError",
            words=["unreadable", "reinstall"],
            files={"METADATA": b"Name: recipes-no_version\n"},
        ),
    ),
    (
        "recipes-cut_short",
        Fault(
            "raise AssertionError",
            words=["entry_points.txt cannot be read", "reinstall recipes-cut_short"],
            distribution="recipes-cut_short",
            files={"entry_points.txt": b"[recipes]\ncut_sh"},
        ),
    ),
    (
        "recipes-garbled",
        Fault(
            "raise AssertionError",
            words=["entry_points.txt cannot be read", "reinstall recipes-garbled"],
            distribution="recipes-garbled",
            files={"entry_points.txt": b"[recipes]\ngarbl\xe9d = garbled\n"},
        ),
    ),
]
"""Plugins by name, in the order of installation. What ends the process, such as os._exit, cannot be helped."""

STRANGER = {"entry_points.txt": b"[console_scripts]\nnonsense\n"}
"""A distribution that is no plugin, and whose entry points cannot be read: it is none of our business."""


def install(site: Path, name: str, fault: Fault) -> None:
    """Put a plugin into a folder that stands for a site-packages: a module, and a real `.dist-info` folder."""
    distribution = fault.distribution or f"recipes-{name}"
    module = distribution.replace("-", "_")
    (site / f"{module}.py").write_text(fault.source)
    requires = "".join(f"Requires-Dist: {requirement}\n" for requirement in fault.requires)
    files: dict[str, bytes | None] = {
        "METADATA": f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n{requires}".encode(),
        "entry_points.txt": f"[recipes]\n{name} = {module}\n".encode(),
        **fault.files,
    }
    info = site / f"{module}-1.0.dist-info"
    info.mkdir()
    for file, content in files.items():
        if content is not None:
            (info / file).write_bytes(content)


@pytest.fixture(scope="session")
def faulty_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every plugin of `FAULTS`."""
    site = tmp_path_factory.mktemp("faulty")
    for name, fault in FAULTS:
        install(site, name, fault)
    install(site, "stranger", Fault("", distribution="stranger", files=dict(STRANGER)))
    return site


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with modules named as torch, ExecuTorch and the toolchains: with it the good plugins are ready."""
    folder = tmp_path_factory.mktemp("stand_ins")
    for module in ("torch", "executorch", "torchao", "coremltools"):
        (folder / f"{module}.py").touch()
    info = folder / "executorch-1.5.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: executorch\nVersion: 1.5.1\n")
    return folder


Run = Callable[..., str]


@pytest.fixture(scope="session")
def healthy(environment: Callable[..., Run], stand_ins: Path) -> Run:
    """Runs something where only the good plugins are installed."""
    return environment(*GOOD, extra=(stand_ins,))


@pytest.fixture(scope="session")
def faulty(environment: Callable[..., Run], stand_ins: Path, faulty_site: Path) -> Run:
    """Runs something where every fault is installed beside the good plugins."""
    return environment(*GOOD, extra=(stand_ins, faulty_site))


LIST = """
import json, time, warnings
import recipes
started = time.perf_counter()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    targets = recipes.list_targets(include_unavailable=True)
elapsed = time.perf_counter() - started
rows = recipes.list_plugins()
print(json.dumps({
    "elapsed": elapsed,
    "warnings": [str(w.message) for w in caught if w.category is recipes.RecipesWarning],
    "rows": [[p.name, p.distribution, p.state, p.reason, p.seconds, list(p.heavy_imports)] for p in rows],
    "targets": {t.name: [t.state, t.reason, t.hint, t.plugin, [str(c) for c in t.components]] for t in targets},
    "recipes": [r.id for r in recipes.list_recipes()],
}))
"""


@pytest.fixture(scope="session")
def listed(faulty: Run) -> dict[str, Any]:
    """What Python code is told where every fault is installed."""
    found: dict[str, Any] = json.loads(faulty(LIST).splitlines()[-1])
    return found


def of_good_plugins(targets: dict[str, Any]) -> dict[str, Any]:
    return {name: target for name, target in targets.items() if target[3] in ("coreml", "xnnpack")}


def test_the_good_plugins_list_exactly_what_they_list_without_the_faults(healthy: Run, listed: dict[str, Any]) -> None:
    alone = json.loads(healthy(LIST))
    assert len(alone["targets"]) == 18
    assert {target[0] for target in alone["targets"].values()} == {"ready"}
    assert of_good_plugins(listed["targets"]) == alone["targets"]
    assert set(alone["recipes"]) <= set(listed["recipes"])
    states = {row[0]: row[2] for row in listed["rows"]}
    assert (states["coreml"], states["xnnpack"]) == ("ok", "ok")


def test_every_fault_is_a_row_with_a_state_and_a_reason_that_a_person_can_act_on(listed: dict[str, Any]) -> None:
    rows = [row for row in listed["rows"] if row[0] not in ("coreml", "xnnpack")]
    assert sorted(row[0] for row in rows) == sorted(name for name, _ in FAULTS)
    for name, fault in FAULTS:
        for _, distribution, state, reason, *_ in (row for row in rows if row[0] == name):
            assert state == fault.state, (name, reason)
            assert bool(reason) == (state != "ok"), name
            assert [word for word in fault.words if word not in reason] == [], (name, reason)
            if not {"METADATA"} & fault.files.keys():
                assert distribution in (f"recipes-{name}", fault.distribution, "other-twin"), name


def test_each_bad_plugin_is_warned_of_once(listed: dict[str, Any]) -> None:
    bad = [name for name, fault in FAULTS if fault.state != "ok"]
    assert len(listed["warnings"]) == len(bad)
    for name in bad:
        assert any(f"plugin {name!r} (" in warning for warning in listed["warnings"])


def test_what_a_bad_plugin_did_declare_is_listed_as_unavailable_with_what_it_lacks(listed: dict[str, Any]) -> None:
    others = {name: target[:3] for name, target in listed["targets"].items() if target[3] not in ("coreml", "xnnpack")}
    assert {name: state for name, (state, _, _) in others.items()} == {
        SHARED: "unavailable",
        "linux-x86_64-lost-fp32": "unavailable",
        "linux-x86_64-chip-fp32": "unavailable",
        "linux-x86_64-unsure-fp32": "unavailable",
    }
    assert "recipes-target_one 1.0" in others[SHARED][1]
    assert "Did you mean 'xnnpack:fp32'" in others["linux-x86_64-lost-fp32"][1]
    assert others["linux-x86_64-chip-fp32"][1:] == ["chip:fp32: chip_sdk is not installed", "pip install 'chip-sdk==2'"]
    unsure = others["linux-x86_64-unsure-fp32"][1]
    assert "recipes-unsure 1.0) reports that it cannot lower here, without a reason" in unsure


def test_the_faults_together_cost_no_more_than_the_slow_plugin_alone(listed: dict[str, Any]) -> None:
    # Times are compared, for time is what the slow plugin takes from everybody: all of it must be laid to that plugin.
    seconds = {row[0]: row[4] for row in listed["rows"]}
    assert seconds["slow"] >= SLEEP
    assert listed["elapsed"] - seconds["slow"] < SLEEP
    assert max(taken for name, taken in seconds.items() if name != "slow") < SLEEP


def test_a_heavy_import_is_laid_to_the_plugin_that_has_it(listed: dict[str, Any]) -> None:
    assert {row[0]: row[5] for row in listed["rows"] if row[5]} == {"heavy": ["torch"]}


def test_the_commands_list_the_same_and_nothing_else_is_on_stdout(faulty: Run, listed: dict[str, Any]) -> None:
    rows = json.loads(faulty(command=("recipes", "plugins", "--json")))
    assert [[r["name"], r["distribution"], r["state"], r["reason"]] for r in rows] == [r[:4] for r in listed["rows"]]
    targets = json.loads(faulty(command=("recipes", "targets", "--all", "--json")))
    assert {target["name"]: target["state"] for target in targets} == {n: t[0] for n, t in listed["targets"].items()}
    table = faulty(command=("recipes", "plugins"))
    assert "hello" not in table
    assert [name for name, _ in FAULTS if name not in table] == []


def test_doctor_names_every_plugin_that_needs_a_person_and_no_other(faulty: Run) -> None:
    found = json.loads(faulty(command=("recipes", "doctor", "--json"), exit_code=1))
    assert found["needs_a_person"] is True
    errors = [finding for finding in found["findings"] if finding["level"] == "error"]
    codes = {(finding["where"].split("'")[1], finding["code"]) for finding in errors}
    bad = {(name, "unusable-plugin") for name, fault in FAULTS if fault.state != "ok"}
    assert codes == bad | {("heavy", "heavy-plugin"), ("slow", "slow-plugin")}
    assert all(finding["way_out"] for finding in errors)
    chip = next(row for row in found["plugins"] if row["name"] == "no_toolchain")
    assert chip["backends"][0]["hint"] == "pip install 'chip-sdk==2'"
    assert "linux-x86_64-chip-fp32" in {target["name"] for target in found["targets"]}


def test_strict_stops_at_the_first_fault_and_doctor_goes_on(faulty: Run) -> None:
    code = "import os; os.environ['RECIPES_STRICT'] = '1'; import sys; from recipes.cli import main; main()"
    diagnosis = code.replace("from", "sys.argv = ['recipes', 'doctor', 'import_error']; from")
    assert "nonexistent_toolchain" in faulty(diagnosis, exit_code=1)
    assert faulty(code.replace("from", "sys.argv = ['recipes', 'targets']; from"), exit_code=2) == ""


@pytest.mark.skipif(importlib.util.find_spec("executorch") is None, reason="making a recipe needs ExecuTorch")
def test_the_good_plugins_make_their_recipes_beside_every_fault(tmp_path: Path) -> None:
    for name, fault in FAULTS:
        if "entry_points.txt" not in fault.files:  # with such a file around torch itself cannot be imported
            install(tmp_path, name, fault)
    result = python(
        tmp_path,
        "import warnings; warnings.simplefilter('ignore')\n"
        "import recipes\n"
        "print(recipes.get_recipe('xnnpack:fp32').name)\n"
        "print(recipes.get_target_recipe('ios-arm64-coreml-fp16').name)\n"
        "print(sorted(p.name for p in recipes.list_plugins() if p.heavy_imports))\n",
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-3:] == ["xnnpack_fp32", "ios-arm64-coreml-fp16", "['heavy']"]


def environ(site: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RECIPES_")}
    return {**kept, "PYTHONPATH": os.pathsep.join([str(site), kept.get("PYTHONPATH", "")])}


def python(site: Path, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environ(site))


def test_an_interrupt_that_a_plugin_raises_still_interrupts(tmp_path: Path) -> None:
    install(tmp_path, "interrupts", Fault("raise KeyboardInterrupt"))
    result = python(tmp_path, "import recipes; recipes.list_targets()")
    assert result.returncode != 0
    assert result.stderr.rstrip().endswith("KeyboardInterrupt")
    result = python(tmp_path, "from recipes.cli import main; main()", "plugins")
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "Interrupted.\n")


@pytest.mark.skipif(os.name == "nt", reason="signals are sent in another way on Windows")
def test_ctrl_c_ends_a_listing_that_a_plugin_holds_up(tmp_path: Path) -> None:
    mark = tmp_path / "asleep"
    install(tmp_path, "sleeps", Fault(f"import pathlib, time\npathlib.Path({str(mark)!r}).touch()\ntime.sleep(120)"))
    command = [sys.executable, "-c", "from recipes.cli import main; main()", "targets"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ(tmp_path)
    )
    try:
        while not mark.exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out, error) == (130, "", "Interrupted.\n")
