"""Run a program that the kernel kills when its parent dies: `die_with_parent.py PARENT_PID PROGRAM ARGS...`.

A launcher, because setting this between fork and exec in a process with threads (Temporal's core has some)
is unsafe. It becomes the program, so the process id stays.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""Number of the option of prctl(2) that names the signal to get when the parent dies; survives execve."""

ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):  # the parent died before the kernel was told
    sys.exit("the parent is gone")
os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 - no shell is wanted
