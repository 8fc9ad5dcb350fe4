"""Files are whole or not there, whatever happens while they are written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from recipes import SaveError
from recipes.files import check_destination, write_atomically


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
        "import sys, time\nfrom pathlib import Path\nfrom recipes.files import write_atomically\n"
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
