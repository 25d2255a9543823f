"""Ask a pod to save its work before it is evicted: by an annotation, or by HTTP.

The HTTP contract: `POST http://<pod IP>:<port><path>` with JSON `incident`, `pod` and `deadline` and the
header `Idempotency-Key`, the same for each repetition. 200 or 204: saved. 202: in progress, ask again. Else
it is tried again until the rule's deadline.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import aiohttp
from yarl import URL

from gpu_runbooks.activities import names
from gpu_runbooks.activities.draining.pods import full_name, status_of
from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH, Kubernetes, Object
from gpu_runbooks.activities.model.drain import PodRule

ASK_TIMEOUT = 5.0
"""Seconds for one call to a pod."""

ASK_AGAIN = 10.0
"""Seconds between two calls to a pod that is still saving."""

WITHDRAW_TIMEOUT = 5.0
"""Seconds for taking requests back at the end of a drain."""

RETRY = 5.0
"""Seconds until a pod that could not be asked is asked again."""


@dataclass(frozen=True)
class CheckpointAnswer:
    """What a pod said."""

    saved: bool
    reached: bool
    """It got the request."""
    words: str
    again: float
    """Seconds until it is asked again."""


async def ask_by_annotation(kubernetes: Kubernetes, pod: Object, token: str) -> None:
    """Set the annotation; the pod answers by one of its own. Raises `KubernetesError`."""
    await _annotate(kubernetes, pod, token)


async def withdraw(kubernetes: Kubernetes, pod: Object) -> None:
    """Take the request back: nothing follows it. Raises `KubernetesError`."""
    await _annotate(kubernetes, pod, None)


async def withdraw_all(kubernetes: Kubernetes, pods: Iterable[Object]) -> None:
    """Take back what these pods were asked for, as far as the API server lets us within a few seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(WITHDRAW_TIMEOUT):
            await asyncio.gather(*(withdraw(kubernetes, pod) for pod in pods), return_exceptions=True)


async def _annotate(kubernetes: Kubernetes, pod: Object, value: str | None) -> None:
    metadata = pod["metadata"]
    # the UID makes the server refuse (409) a pod that was born again under the name
    changes = {"uid": metadata["uid"], "annotations": {names.CHECKPOINT_REQUESTED_ANNOTATION: value}}
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
    await kubernetes.request("PATCH", path, body={"metadata": changes}, content_type=MERGE_PATCH)


async def ask_by_http(
    session: aiohttp.ClientSession, pod: Object, rule: PodRule, incident: str, token: str, deadline: datetime
) -> CheckpointAnswer:
    """Ask once. Raises nothing: a pod that cannot be asked is one that has not answered."""
    address = status_of(pod).get("podIP")
    if not address:
        return CheckpointAnswer(
            saved=False, reached=False, words="the pod has no IP address yet", again=RETRY
        )
    url = URL.build(scheme="http", host=address, port=rule.checkpoint_port, path=rule.checkpoint_path)
    body = {"incident": incident, "pod": full_name(pod), "deadline": deadline.isoformat()}
    timeout = aiohttp.ClientTimeout(total=ASK_TIMEOUT)
    try:
        async with session.post(
            url, json=body, headers={"Idempotency-Key": token}, timeout=timeout, allow_redirects=False
        ) as response:
            status = response.status
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
        return CheckpointAnswer(
            saved=False, reached=False, words=f"POST {url} fails, asked again: {error!r}", again=RETRY
        )
    if status in {200, 204}:
        return CheckpointAnswer(saved=True, reached=True, words="saved", again=0.0)
    if status == 202:
        return CheckpointAnswer(saved=False, reached=True, words="the pod is saving", again=ASK_AGAIN)
    return CheckpointAnswer(
        saved=False, reached=True, words=f"POST {url} answers {status}, asked again", again=RETRY
    )
