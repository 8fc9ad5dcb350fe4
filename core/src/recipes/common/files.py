"""Write files atomically: a crash or a full disk never leaves half a file for a reader to find."""

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
    """Return the path as a `Path`, if a file can be written there.

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
    """Write files beside their destinations, and move them there when all of them are complete.

    A failure while writing leaves every destination as it was. One file is moved in one step. Several files cannot
    be, so a journal is written beside the first one once all are complete. A process that is killed before that
    leaves the old files. A process that is killed after that leaves complete new files, of which some may not be
    moved yet: `finish_saving` moves them, on the next save or when recipes reads them. Nothing prevents two processes
    from saving to one path at the same time.

    Args:
        writers: For each destination, a function that writes its bytes to an open file. All are in one folder.

    Raises:
        SaveError: The files could not be written; the destinations are as they were.
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
        # With a journal, these are complete new files that must still be moved.
        if not _journal(first).exists():
            for temporary in written.values():
                with suppress(FileNotFoundError):
                    os.unlink(temporary)


def finish_saving(path: Path) -> None:
    """Move complete files into place after a save that was interrupted.

    Args:
        path: The first of the files: the program.

    Raises:
        SaveError: There are such files, but they cannot be moved; or their list is not one that a save has written.
    """
    journal = _journal(path)
    try:
        text = journal.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return
    moves = _moves(text, journal)
    try:
        with ExitStack() as replaced:
            if os.name == "posix":
                # Replacing a file takes milliseconds where the file system frees the old one at once, and
                # microseconds while the old one is open. In that time a reader that does not use recipes could find
                # old and new files mixed.
                for destination in moves:
                    with suppress(OSError):  # it does not exist, or we may not read it
                        replaced.enter_context(open(path.parent / destination, "rb"))
            for destination, temporary in moves.items():
                with suppress(FileNotFoundError):  # moved already
                    os.replace(path.parent / temporary, path.parent / destination)
            journal.unlink(missing_ok=True)
    except OSError as error:
        raise SaveError(
            f"A save of {path} was interrupted, and its new files cannot be moved into place "
            f"({error.strerror or error}). "
            f"{journal.name} in the same folder lists them."
        ) from error


def _moves(text: bytes, journal: Path) -> dict[str, str]:
    """The temporary file for each destination. Both are names of files in the journal's folder, never elsewhere.

    Raises:
        SaveError: The journal says anything else, so this program did not write it.
    """
    try:
        moves = json.loads(text)
    except ValueError:
        moves = None
    names = [*moves, *moves.values()] if isinstance(moves, dict) else [None]
    if not all(isinstance(name, str) and _is_plain_name(name) for name in names):
        raise SaveError(
            f"{journal} is not the journal of an interrupted save, which maps names of files in its folder to names of "
            "files in its folder. Delete it."
        )
    return dict(moves)


def _is_plain_name(name: str) -> bool:
    return name not in ("", ".", "..") and not set(name) & set("/\\\0")


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
