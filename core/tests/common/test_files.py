"""Files are whole or not there, whatever happens while they are written."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest

from recipes import SaveError
from recipes.common.files import check_destination, finish_saving, write_atomically


def test_a_file_is_written_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_atomically({tmp_path / "a": lambda f: f.write(b"one"), tmp_path / "b": lambda f: f.write(b"two")})
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"a": b"one", "b": b"two"}


def test_a_failure_leaves_all_files_as_they_were(tmp_path: Path) -> None:
    def fail(file: IO[bytes]) -> None:
        file.write(b"half")
        raise RuntimeError("no more bytes")

    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(RuntimeError, match="no more bytes"):
        write_atomically({tmp_path / "a": lambda f: f.write(b"new"), tmp_path / "b": fail})
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"a": b"old"}


def test_an_error_of_the_system_is_a_save_error_that_names_the_file(tmp_path: Path) -> None:
    def full(file: IO[bytes]) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(SaveError, match=r"a: No space left on device"):
        write_atomically({tmp_path / "a": full})
    assert list(tmp_path.iterdir()) == []


def test_permissions_are_those_of_the_file_that_is_replaced_or_of_any_new_file(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_bytes(b"")
    old.chmod(0o640)
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    write_atomically({old: lambda f: f.write(b"x"), tmp_path / "new": lambda f: f.write(b"x")})
    assert old.stat().st_mode == (0o100640)
    assert (tmp_path / "new").stat().st_mode == plain.stat().st_mode


def test_a_link_is_replaced_by_the_file_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"kept")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    write_atomically({tmp_path / "link": lambda f: f.write(b"new")})
    assert (tmp_path / "kept").read_bytes() == b"kept"
    assert (tmp_path / "link").read_bytes() == b"new"


@pytest.mark.parametrize(
    ("path", "problem"), [("folder", "it is a folder"), ("missing/model.pte", "does not exist"), ("", "it is a folder")]
)
def test_a_destination_that_cannot_be_is_refused(path: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(SaveError, match=problem):
        check_destination(f"{tmp_path}/{path}" if path else "")


def test_a_killed_process_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "model.pte"
    target.write_bytes(b"old")
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom recipes.common.files import write_atomically\n"
        "def slow(file):\n    file.write(b'x' * 100000); file.flush(); print('half', flush=True); time.sleep(60)\n"
        "write_atomically({Path(sys.argv[1]): slow})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(target)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=30)
    process.stdout.close()
    assert target.read_bytes() == b"old"


# Saves pairs of equal content for ever. Given a number, it kills itself at that call of a function that changes files.
SAVE_PAIRS = """
import itertools, os, signal, sys, time
from pathlib import Path
from recipes.common.files import write_atomically

folder, fatal = Path(sys.argv[1]), int(sys.argv[2])
calls = itertools.count()

def dying(function):
    def call(*args, **kwargs):
        if next(calls) == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return call

if fatal >= 0:
    for name in ("open", "write", "fsync", "chmod", "replace", "unlink"):
        setattr(os, name, dying(getattr(os, name)))

def pair(content):
    return {folder / name: lambda file: file.write(content) for name in ("a.pte", "b.ptd", "a.pte.json")}

if fatal >= 0:
    write_atomically(pair(b"new"))
    print("saved")
else:
    print("ready", flush=True)
    while True:
        write_atomically(pair(b"%d" % time.time_ns() * 5000))
"""


def contents(folder: Path) -> set[bytes]:
    """What the files of the pair hold after they are asked for; one element where they belong together."""
    finish_saving(folder / "a.pte")
    return {(folder / name).read_bytes() for name in ("a.pte", "b.ptd", "a.pte.json")}


def test_a_process_killed_at_any_call_that_changes_files_leaves_the_old_files_or_the_new_ones(tmp_path: Path) -> None:
    seen: list[set[bytes]] = []
    for fatal in range(100):
        folder = tmp_path / str(fatal)
        folder.mkdir()
        for name in ("a.pte", "b.ptd", "a.pte.json"):
            (folder / name).write_bytes(b"old")
        process = subprocess.run(
            [sys.executable, "-c", SAVE_PAIRS, str(folder), str(fatal)], capture_output=True, text=True, timeout=60
        )
        seen.append(contents(folder))
        if "saved" in process.stdout:
            break
        assert process.returncode == -signal.SIGKILL, process.stderr
    else:
        pytest.fail("the process was killed at every call")
    assert len(seen) > 10
    first_new = seen.index({b"new"})
    assert seen == [{b"old"}] * first_new + [{b"new"}] * (len(seen) - first_new)
    assert 0 < first_new < len(seen) - 3, "both sides of the journal were met"


def test_a_process_killed_at_any_moment_of_many_saves_leaves_files_that_belong_together(tmp_path: Path) -> None:
    draw = random.Random(0)
    for name in ("a.pte", "b.ptd", "a.pte.json"):
        (tmp_path / name).write_bytes(b"old")
    kept = set()
    for _ in range(40):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVE_PAIRS, str(tmp_path), "-1"], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(draw.uniform(0, 0.05))
        process.kill()
        process.wait(timeout=30)
        process.stdout.close()
        (content,) = contents(tmp_path)
        kept.add(content)
    assert len(kept) > 10


def test_a_save_after_one_that_was_cut_short_is_the_one_that_counts(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SAVE_PAIRS, str(tmp_path)]
    for fatal in range(100):
        subprocess.run([*command, str(fatal)], capture_output=True, timeout=60)
        if (tmp_path / ".a.pte.saving").exists():
            break
    write_atomically({tmp_path / name: lambda file: file.write(b"last") for name in ("a.pte", "b.ptd", "a.pte.json")})
    assert contents(tmp_path) == {b"last"}
    assert not (tmp_path / ".a.pte.saving").exists()


def test_files_of_a_cut_short_save_that_cannot_be_moved_are_told(tmp_path: Path) -> None:
    (tmp_path / ".a.pte.saving").write_text('{"a.pte": ".a.pte.x.tmp"}')
    (tmp_path / ".a.pte.x.tmp").write_bytes(b"new")
    (tmp_path / "a.pte").mkdir()
    with pytest.raises(SaveError, match="was interrupted"):
        finish_saving(tmp_path / "a.pte")
    assert (tmp_path / ".a.pte.x.tmp").read_bytes() == b"new"


@pytest.mark.parametrize(
    "journal",
    [
        '{"../stolen": ".model.pte.1.tmp"}',
        '{"model.pte": "../secret"}',
        '{"model.pte": "/etc/passwd"}',
        '{"a\\\\b": "c"}',
        '{"..": "c"}',
        '{"model.pte": 3}',
        '["model.pte"]',
        "{",
        "\udcff",
    ],
)
def test_a_journal_that_no_save_has_written_moves_nothing(journal: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "secret").write_text("secret")
    (folder / ".model.pte.1.tmp").write_text("new")
    (folder / "model.pte").write_text("old")
    (folder / ".model.pte.saving").write_bytes(journal.encode(errors="surrogateescape"))

    with pytest.raises(SaveError, match=r"is not the journal of an interrupted save.*Delete it"):
        finish_saving(folder / "model.pte")

    assert (folder / "model.pte").read_text() == "old"
    assert (tmp_path / "secret").read_text() == "secret"
    assert not (tmp_path / "stolen").exists()
