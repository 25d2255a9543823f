"""The Kubernetes API: raw JSON over the official asyncio client, with a timeout on every call.

Raw JSON because a typed object refuses what a newer server sends, and costs more. Two verbs cover all that
we do: `request` for one call, and `follow` to wait for a state of the world without polling it.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client, config

Object = dict[str, Any]
"""A Kubernetes object as JSON."""

MERGE_PATCH = "application/merge-patch+json"

CALL_TIMEOUT = 15.0
"""Seconds for one call; the API server's own limit is 60, and nothing of ours should need 15."""

WATCH_SECONDS = 25
"""The server ends a watch after so long; the next list is then the safety net against lost events."""

WATCH_SILENCE = 40.0
"""Seconds without a byte after which the client gives a watch up. Longer than the server's own limit."""


class KubernetesError(Exception):
    """The API server refused, or could not be reached (`status` 0)."""

    def __init__(self, status: int, reason: str, message: str, body: Object | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.body = body or {}

    def causes(self) -> tuple[str, ...]:
        """Machine-readable causes of the Status object, such as `DisruptionBudget`."""
        details = self.body.get("details") or {}
        return tuple(str(cause.get("reason", "")) for cause in details.get("causes") or ())


class Kubernetes:
    """A connection to one API server with one identity. Safe to share between tasks."""

    def __init__(self, configuration: client.Configuration) -> None:
        self._configuration = configuration
        self._api = client.ApiClient(configuration)

    @classmethod
    @asynccontextmanager
    async def connect(cls) -> AsyncIterator["Kubernetes"]:
        """Connect as the environment says: `KUBECONFIG`, else the Pod's service account.

        Raises `kubernetes.aio.config.ConfigException` when there is neither.
        """
        configuration = client.Configuration()
        configuration.connection_pool_maxsize = 100
        configuration.disable_strict_ssl_verification = True
        if kubeconfig := os.environ.get("KUBECONFIG"):
            await config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
        else:
            config.load_incluster_config(client_configuration=configuration)
        kubernetes = cls(configuration)
        try:
            yield kubernetes
        finally:
            await kubernetes.close()

    async def close(self) -> None:
        await self._api.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Object:
        """One call, for example `request("GET", "/api/v1/nodes/n1")`.

        Raises `KubernetesError` for any answer but 2xx, and with status 0 where there was no answer: then
        nobody knows whether the call took effect.
        """
        try:
            response = await self._send(
                method, path, query, body, content_type, aiohttp.ClientTimeout(total=CALL_TIMEOUT)
            )
            async with response:
                content = await response.read()
        except (TimeoutError, aiohttp.ClientError) as error:
            raise KubernetesError(0, "Unreachable", f"{method} {path}: {error!r}") from error
        answer = _decode(content)
        if response.status >= 300:
            raise _error(response.status, answer, f"{method} {path}")
        return answer

    async def items(self, path: str, *, label_selector: str = "", field_selector: str = "") -> list[Object]:
        """List a collection, all pages in one."""
        answer = await self.request("GET", path, query=_selectors(label_selector, field_selector))
        return list(answer.get("items") or ())

    async def follow(
        self, path: str, *, label_selector: str = "", field_selector: str = ""
    ) -> AsyncIterator[dict[str, Object]]:
        """Yield the collection by UID: once after the list, then after each change, for as long as asked.

        A watch that ends, breaks, falls silent or is too old (410) leads to a new list, at most one a second,
        so an event can be late but not lost. The mapping is live: read it before asking for the next.

        Raises `KubernetesError` when the list itself is refused (401, 403, 404); an unreachable or busy
        server is tried again for ever: the caller owns the deadline.
        """
        selectors = _selectors(label_selector, field_selector)
        while True:
            try:
                answer = await self.request("GET", path, query=selectors)
            except KubernetesError as error:
                if error.status in {400, 401, 403, 404}:
                    raise
                await asyncio.sleep(1)
                continue
            objects = {item["metadata"]["uid"]: item for item in answer.get("items") or ()}
            yield objects
            started = asyncio.get_running_loop().time()
            version = answer["metadata"]["resourceVersion"]
            async for event in self._watch(path, {**selectors, "resourceVersion": version}):
                subject = event["object"]
                if event["type"] == "DELETED":
                    objects.pop(subject["metadata"]["uid"], None)
                elif event["type"] in {"ADDED", "MODIFIED"}:
                    objects[subject["metadata"]["uid"]] = subject
                else:  # ERROR, or a type of a newer server: list again
                    break
                yield objects
            await asyncio.sleep(max(0.0, 1.0 - (asyncio.get_running_loop().time() - started)))

    async def _watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[Object]:
        """Events of one watch. Ends without an error, whatever ended it."""
        watching = {**query, "watch": "true", "timeoutSeconds": str(WATCH_SECONDS)}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CALL_TIMEOUT, sock_read=WATCH_SILENCE)
        try:
            async with await self._send("GET", path, watching, None, "application/json", timeout) as response:
                if response.status != 200:
                    return
                async for line in response.content:
                    event = _decode(line)
                    if not event.get("object"):
                        return
                    yield event
        except (TimeoutError, aiohttp.ClientError):
            return

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Any,
        content_type: str,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = self._configuration.host + path + ("?" + urlencode(query) if query else "")
        answer = await self._api.rest_client.request(
            method, url, headers=headers, body=body, _request_timeout=timeout
        )
        response: aiohttp.ClientResponse = answer.response
        return response


def _selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {name: value for name, value in selectors.items() if value}


def _decode(content: bytes) -> Object:
    """JSON object, or an empty one for anything else: half a chunk is no event, a proxy's page no Status."""
    try:
        answer = json.loads(content)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _error(status: int, answer: Object, call: str) -> KubernetesError:
    message = str(answer.get("message") or "no Status object in the answer")
    return KubernetesError(status, str(answer.get("reason") or ""), f"{call}: {message}", answer)
