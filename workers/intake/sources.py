"""The sources of faults. Each is a module with `run`; this is the one place where it is registered."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from gpu_runbooks.workers.intake import aws_events, node_conditions, webhook
from gpu_runbooks.workers.intake.reception import Reception
from gpu_runbooks.workers.settings import Settings

Source = Callable[[Reception, Settings, asyncio.Event], Coroutine[Any, Any, None]]
"""Hands faults to the reception until the event is set. Returns at once where its settings are not given."""

SOURCES: dict[str, Source] = {
    "alertmanager": webhook.run,
    "node conditions": node_conditions.run,
    "aws events": aws_events.run,
}
