"""Write files so that a reader, a crash or a full disk never meets half of one."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

from recipes.common.errors import SaveError

Writer = Callable[[IO[bytes]], Any]


def check_destination(path: str | os.PathLike[str]) -> Path:
    """The path as a `Path`, if a file can be put there.

    Raises:
        SaveError: It is a folder, or its folder does not exist or cannot be written to.
    """
    destination = Path(path)
    if not destination.name or destination.is_dir():
        raise SaveError(f"Cannot save to {str(path)!r}: it is a folder. Give the name of a file.")
    if not destination.parent.is_dir():
        raise SaveError(f"Cannot save to {str(path)!r}: the folder {str(destination.parent)!r} does not exist.")
    if not os.access(destination.parent, os.W_OK):
        raise SaveError(f"Cannot save to {str(path)!r}: the folder {str(destination.parent)!r} is not writable.")
    return destination


def write_atomically(writers: Mapping[Path, Writer]) -> None:
    """Write files beside their destinations, and move them there when all of them are whole.

    A failure while writing leaves every destination as it was. One file is moved in one step. Several
    cannot be, so once all are whole a journal is put beside the first: a process that is killed before that
    leaves the old files; one that is killed after it leaves new files of which some are still to be moved,
    which `finish_saving` does, from the next save or from whoever reads them through recipes. Two
    processes that save to one path at the same time are not kept apart.

    Args:
        writers: For each destination, a function that writes its bytes to an open file. All are in one folder.

    Raises:
        SaveError: Nothing could be written; the destinations are as they were.
    """
    first = next(iter(writers))
    assert all(destination.parent == first.parent for destination in writers), "a journal is of one folder"
    finish_saving(first)
    written: dict[Path, str] = {}
    try:
        for destination, write in writers.items():
            written[destination] = _write_beside(destination, write)
            os.chmod(written[destination], _mode(destination))
        if len(written) == 1:
            os.replace(written[first], first)
        else:
            moves = {destination.name: Path(temporary).name for destination, temporary in written.items()}
            journal = _journal(first)
            written[journal] = _write_beside(journal, lambda file: file.write(json.dumps(moves).encode()))
            os.replace(written[journal], journal)
            finish_saving(first)
    except OSError as error:
        if isinstance(error, SaveError):
            raise
        names = ", ".join(str(destination) for destination in writers)
        raise SaveError(f"Cannot save {names}: {error.strerror or error}.") from error
    finally:
        # With a journal these are the new files, whole, which are still to be moved.
        if not _journal(first).exists():
            for temporary in written.values():
                with suppress(FileNotFoundError):
                    os.unlink(temporary)


def finish_saving(path: Path) -> None:
    """Move files into place whose saving was cut short when all of them were whole already.

    Args:
        path: The first of the files, a program's.

    Raises:
        SaveError: There are such files, and they cannot be moved.
    """
    journal = _journal(path)
    try:
        moves = json.loads(journal.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        with ExitStack() as replaced:
            if os.name == "posix":
                # A file system that frees a replaced file at once takes milliseconds; while it is open, microseconds.
                # So short is the time in which somebody who reads without recipes could meet a mix.
                for destination in moves:
                    with suppress(OSError):  # it is not there, or not ours to read
                        replaced.enter_context(open(path.parent / destination, "rb"))
            for destination, temporary in moves.items():
                with suppress(FileNotFoundError):  # moved already
                    os.replace(path.parent / temporary, path.parent / destination)
            journal.unlink(missing_ok=True)
    except OSError as error:
        raise SaveError(
            f"Saving {path} was cut short, and its new files cannot be moved into place ({error.strerror or error}). "
            f"{journal.name} in its folder says which they are."
        ) from error


def _journal(first: Path) -> Path:
    return first.with_name(f".{first.name}.saving")


def _write_beside(destination: Path, write: Writer) -> str:
    handle, temporary = tempfile.mkstemp(prefix=f".{destination.name}.", suffix=".tmp", dir=destination.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        os.unlink(temporary)
        raise
    return temporary


def _mode(destination: Path) -> int:
    """The permissions of the file that is replaced, or those that a new file would get."""
    if destination.exists():
        return destination.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
