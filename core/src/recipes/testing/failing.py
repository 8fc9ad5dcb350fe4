"""How a conformance test fails: with what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from recipes.common import OptionError


def fail_for(problems: Sequence[str], advice: str) -> None:
    """Fail with what is wrong and what to do, if anything is wrong; a traceback into these tests would not help."""
    if problems:
        text = "\n".join(f"{problem.rstrip('.')}." for problem in problems)
        pytest.fail(f"{text}\n{advice}", pytrace=False)


def must_refuse(call: Callable[[], Any], names: str, what: str, advice: str) -> None:
    """Fail unless a call ends with an OptionError that names what is wrong.

    Args:
        call: What is called.
        names: What the error must name.
        what: The call, in words.
        advice: What to do if it does not.
    """
    try:
        call()
    except OptionError as error:
        if names not in str(error):
            fail_for([f"{what} is refused with an error that does not name {names!r}: {error}"], advice)
    except Exception as error:
        fail_for([f"{what} raises {type(error).__name__}, but must raise OptionError: {error}"], advice)
    else:
        fail_for([f"{what} is accepted, but must be refused with OptionError"], advice)
