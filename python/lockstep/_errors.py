# SPDX-License-Identifier: Apache-2.0
"""The exceptions, and how a status of the library becomes one."""

from __future__ import annotations

import builtins
from typing import Dict, NoReturn

from ._library import library


class Error(RuntimeError):
    """A call failed; the text is ls_error_message's. `status` is its number, `name` its name."""

    status = 0

    @property
    def name(self) -> str:
        return library().ls_status_name(self.status).decode()


class InvalidError(Error, ValueError):
    """An argument is not acceptable."""


class TimeoutError(Error, builtins.TimeoutError):  # the builtin, too: `except TimeoutError` catches it
    """The deadline passed."""


class StillRunning(TimeoutError):
    """A wait with a time of its own was over before the operation, which goes on."""


class PeerError(Error):
    """Another rank died, left or failed."""


class MismatchError(Error):
    """Ranks disagree about an operation."""


class AbortedError(Error):
    """The group was aborted."""


_KINDS = {-1: InvalidError, -4: TimeoutError, -5: PeerError, -6: MismatchError, -7: AbortedError}


def make_error(status: int, text: str) -> Error:
    if status == -4 and "timed out" not in text.lower():
        text = f"timed out: {text}"  # the words that programs of PyTorch look for
    error = _KINDS.get(status, Error)(text)
    error.status = status
    return error


def still_running(seconds: float) -> StillRunning:
    error = StillRunning(f"timed out: the operation has not ended after {seconds:g} s; it goes on")
    error.status = -4
    return error


def raise_last(status: int) -> NoReturn:
    text = library().ls_error_message().decode("utf-8", "replace")
    raise make_error(status, text) from next(
        (failures.pop(known) for known in list(failures) if status == -7 and known in text), None)


failures: Dict[str, BaseException] = {}  # text: what an operator of the user's has raised here, until that is told


def note_failure(text: str, error: BaseException) -> None:
    if len(failures) < 16:
        failures.setdefault(text, error)
