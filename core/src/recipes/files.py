"""Write files so that a reader, a crash or a full disk never meets half of one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from recipes.errors import SaveError

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

    A failure while writing leaves every destination as it was.

    Args:
        writers: For each destination, a function that writes its bytes to an open file.

    Raises:
        SaveError: Nothing could be written; the destinations are as they were.
    """
    written: dict[Path, str] = {}
    try:
        for destination, write in writers.items():
            handle, temporary = tempfile.mkstemp(prefix=f".{destination.name}.", suffix=".tmp", dir=destination.parent)
            written[destination] = temporary
            with os.fdopen(handle, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, _mode(destination))
        for destination, temporary in written.items():
            os.replace(temporary, destination)
    except OSError as error:
        names = ", ".join(str(destination) for destination in writers)
        raise SaveError(f"Cannot save {names}: {error.strerror or error}.") from error
    finally:
        for temporary in written.values():
            with suppress(FileNotFoundError):
                os.unlink(temporary)


def _mode(destination: Path) -> int:
    """The permissions of the file that is replaced, or those that a new file would get."""
    if destination.exists():
        return destination.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
