# SPDX-License-Identifier: Apache-2.0
"""Ends of a rank before the end of its program, of which the other ranks learn at once, with the reason.

- An exception that nobody catches fails the groups with its text, before the process ends.
- Ctrl-C is heard while the main thread waits in the library. Python runs its handler only after the
  call, so a thread of ours reads the signal from a pipe and, if that wait goes on, fails the groups;
  the call returns, and KeyboardInterrupt is raised in its place.
"""

import os
import signal
import sys
import threading
import time
import traceback
from typing import Any

_PATIENCE = 0.2  # seconds in which a wait may end by itself before Ctrl-C ends it

_former_hook: Any = None
_written = None  # the end of the pipe into which Python writes signals, once they are watched


def _fail_groups(why):
    from . import _core
    for group in list(_core.groups):
        try:
            group.abort(why)
        except _core.Error:
            pass  # it has failed already


def _tell_others(kind, error, trace):
    from . import _core
    _former_hook(kind, error, trace)
    if _core.is_initialized() and not isinstance(error, _core.Error):  # the others know of those
        _fail_groups("uncaught " + traceback.format_exception_only(kind, error)[-1].strip())


def _listen(read):
    from . import _core
    with open(read, "rb", buffering=0) as pipe:
        for signals in iter(lambda: pipe.read(64), b""):
            time.sleep(_PATIENCE)
            if signal.SIGINT in signals and _core.state.waiting and _core.is_initialized():
                _fail_groups("interrupted by Ctrl-C (SIGINT)")


def _hears_interrupts():
    return (threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler)


def watch():
    """Called by init, on its thread."""
    global _former_hook, _written
    from . import _core
    if _former_hook is None:
        _former_hook, sys.excepthook = sys.excepthook, _tell_others
    if _written is not None or not _hears_interrupts():
        return
    read, _written = os.pipe()
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    os.set_blocking(_written, False)
    former = signal.set_wakeup_fd(_written, warn_on_full_buffer=False)
    if former != -1:  # an event loop of the program's has it
        signal.set_wakeup_fd(former, warn_on_full_buffer=False)
    with _core.state.lock:
        _core.state.helpers += 1
    threading.Thread(target=_listen, args=(read,), name="lockstep Ctrl-C", daemon=True).start()
