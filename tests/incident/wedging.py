"""A defect of the time-skipping test server, so that a test which meets it is begun anew.

The server refuses to cancel a timer that fired while its workflow task ran, and then never gives that
workflow another task: https://github.com/temporalio/sdk-java/issues/3088. The real server has no such defect.
"""

import asyncio
import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

REFUSED = "invalid history builder state for action"
"""What the worker logs of it, and of nothing else."""

LOGGER = logging.getLogger("temporal-core")


class WedgedServerError(Exception):
    """What a test ends with that met it, in place of its patience: its next try begins at once."""


@functools.cache
def logged_runtime() -> Runtime:
    """The runtime for clients of the test server: what the core of the SDK logs comes to `LOGGER`."""
    levels = TelemetryFilter(core_level="WARN", other_level="ERROR")
    logging_config = LoggingConfig(levels, forwarding=LogForwardingConfig(LOGGER))
    return Runtime(telemetry=TelemetryConfig(logging=logging_config))


@contextmanager
def ended_when_wedged() -> Iterator[None]:
    """End the running test at once where it would wait for a wedged workflow. Raises `WedgedServerError`."""
    test = asyncio.current_task()
    assert test is not None
    watch = _Watch(test)
    LOGGER.addHandler(watch)
    try:
        yield
    except BaseException as error:
        if watch.wedged:
            raise WedgedServerError("the test server refused to cancel a timer: sdk-java#3088") from error
        raise
    finally:
        LOGGER.removeHandler(watch)


class _Watch(logging.Handler):
    def __init__(self, test: asyncio.Task[None]) -> None:
        super().__init__()
        self.wedged = False
        self._test = test

    def emit(self, record: logging.LogRecord) -> None:
        if REFUSED in record.getMessage():
            self.wedged = True
            self._test.get_loop().call_soon_threadsafe(self._test.cancel)
