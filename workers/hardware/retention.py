"""Whether Temporal keeps closed incidents as long as policy looks back for repairs of the same hardware."""

import logging

from temporalio.client import Client
from temporalio.service import RPCError

from gpu_runbooks.activities.history.ledger import retention
from gpu_runbooks.workflows.ledger import window_in_words
from gpu_runbooks.workflows.policy.policy import Policy

log = logging.getLogger(__name__)


async def warn_of_short_retention(client: Client, policy: Policy) -> None:
    """Say it loudly where it does not. Nothing stops for it: an incident says how far back it could look."""
    windows = {pool.name: policy.repair_of(pool).repeats.window for pool in policy.pools}
    pool, window = max(windows.items(), key=lambda each: each[1])
    try:
        kept = await retention(client)
    except RPCError as error:
        log.warning(
            "the retention of the Temporal namespace %s cannot be read (%s): it must be at least %s, so far "
            "does policy look back for repairs of the same hardware",
            client.namespace,
            error.message,
            window_in_words(window),
        )
        return
    if kept < window:
        log.warning(
            "REPEAT OFFENDERS WILL BE MISSED: pool %s looks back %s for repairs of the same hardware, and "
            "the Temporal namespace %s keeps closed incidents for %s only. Run `temporal operator namespace "
            "update --namespace %s --retention %dh`, or shorten repair.repeats.window in the policy",
            pool,
            window_in_words(window),
            client.namespace,
            window_in_words(kept),
            client.namespace,
            -(-window.total_seconds() // 3600),
        )
