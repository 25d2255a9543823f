"""Kernel log lines become events, and events faults. Pure: no file is read here, and no clock.

This is the only place that reads such lines. `docs/kernel-log.md` lists every shape, and what comes of it.
"""

from gpu_runbooks.activities.kernel_log.event import Event, Kind
from gpu_runbooks.activities.kernel_log.faults import fault_of
from gpu_runbooks.activities.kernel_log.parser import Parser, parse
from gpu_runbooks.activities.kernel_log.window import Window

__all__ = ["Event", "Kind", "Parser", "Window", "fault_of", "parse"]
