"""Waiting in a workflow, with a deadline always."""

from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow


async def wait_for(condition: Callable[[], bool], deadline: timedelta, summary: str) -> bool:
    """Wait until the condition holds or the time is over; returns whether it holds."""
    try:
        await workflow.wait_condition(condition, timeout=deadline, timeout_summary=summary)
    except TimeoutError:
        return False
    return True
