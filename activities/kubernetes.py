"""The Kubernetes API: raw JSON over the official asyncio client, with a timeout on every call.

Raw JSON because a typed object refuses what a newer server sends, and costs more. Two verbs cover all that
we do: `request` for one call, and `follow` to wait for a state of the world without polling it.
"""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
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

LIST_INTERVAL = 2.0
"""Seconds at least between two lists of one `follow`: with the watch in between, one request a second."""

LONGEST_RETRY_AFTER = 60.0
"""Seconds of a server's wish that are honoured: a proxy may ask for hours."""

REFUSALS = frozenset({400, 401, 403, 404})
"""Answers to a list or watch that will not change by asking again."""


class KubernetesError(Exception):
    """The API server refused, or could not be reached (`status` 0)."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        body: Object | None = None,
        *,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.body = body or {}
        self.retry_after = retry_after
        """Seconds that the server asks us to wait, where it said so."""

    @property
    def details(self) -> Object:
        """`details` of the Status object: kind and name of what the answer is about, and causes."""
        details = self.body.get("details")
        return details if isinstance(details, dict) else {}

    def causes(self) -> tuple[str, ...]:
        """Machine-readable causes of the Status object, such as `DisruptionBudget`."""
        return tuple(str(cause.get("reason", "")) for cause in self._causes())

    def cause_messages(self) -> tuple[str, ...]:
        """What the causes say, for a person."""
        return tuple(str(cause["message"]) for cause in self._causes() if cause.get("message"))

    def _causes(self) -> list[Object]:
        causes = self.details.get("causes")
        return [cause for cause in causes if isinstance(cause, dict)] if isinstance(causes, list) else []


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
        configuration.connection_pool_maxsize = 500  # each wait of ours holds a watch open
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
        nobody knows whether the call took effect. A read whose answer is no object has status 0 too; a write
        is judged by its status alone, since some answer with an empty body.
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
            raise _error(response.status, answer, f"{method} {path}", response.headers.get("Retry-After"))
        if method == "GET" and not answer:
            raise KubernetesError(0, "Unreadable", f"{method} {path}: the answer is no JSON object")
        return answer

    async def find(self, path: str) -> Object | None:
        """One object, or None where there is none (404). Raises `KubernetesError` for all else."""
        try:
            return await self.request("GET", path)
        except KubernetesError as error:
            if error.status == 404:
                return None
            raise

    async def items(self, path: str, *, label_selector: str = "", field_selector: str = "") -> list[Object]:
        """List a collection, all pages in one, as of now (no cache of the server is asked).

        Raises `KubernetesError` also when the answer is no list: that is unknown, not empty.
        """
        _, items = await self._list(path, _selectors(label_selector, field_selector))
        return items

    async def _list(self, path: str, query: Mapping[str, str]) -> tuple[str, list[Object]]:
        """Resource version and items of a collection."""
        answer = await self.request("GET", path, query=query)
        version = (answer.get("metadata") or {}).get("resourceVersion")
        items = answer.get("items")
        if not version or not isinstance(items, list | None) or not str(answer.get("kind")).endswith("List"):
            raise KubernetesError(0, "Unreadable", f"GET {path}: the answer is no list")
        return version, items or []

    async def follow(
        self, path: str, *, label_selector: str = "", field_selector: str = ""
    ) -> AsyncGenerator[dict[str, Object]]:
        """Yield the collection by UID: once after the list, then after each change, for as long as asked.

        A watch that ends, breaks, falls silent or is too old (410) leads to a new list, so an event can be
        late but not lost. The mapping is live: read it before asking for the next, and close the generator
        (`contextlib.aclosing`) when done, or its connection stays open.

        Raises `KubernetesError` when list or watch are refused (400, 401, 403, 404); an unreachable or busy
        server is tried again for ever: the caller owns the deadline.
        """
        selectors = _selectors(label_selector, field_selector)
        clock = asyncio.get_running_loop().time
        while True:
            started = clock()
            try:
                version, items = await self._list(path, selectors)
                objects = {item["metadata"]["uid"]: item for item in items}
                yield objects
                async with aclosing(self._watch(path, {**selectors, "resourceVersion": version})) as events:
                    async for event in events:
                        if not _apply(event, objects):
                            break
                        yield objects
            except KubernetesError as error:
                if error.status in REFUSALS:
                    raise
                await asyncio.sleep(error.retry_after or 0)
            await asyncio.sleep(max(0.0, LIST_INTERVAL - (clock() - started)))

    async def _watch(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[Object]:
        """Events of one watch. However it ends, a new list is next; only a refusal is an error."""
        watching = {**query, "watch": "true", "timeoutSeconds": str(WATCH_SECONDS)}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CALL_TIMEOUT, sock_read=WATCH_SILENCE)
        try:
            async with await self._send("GET", path, watching, None, "application/json", timeout) as response:
                if response.status != 200:
                    answer = _decode(await response.read())
                    retry_after = response.headers.get("Retry-After")
                    raise _error(response.status, answer, f"WATCH {path}", retry_after)
                async for line in response.content:
                    yield _decode(line)
        except (TimeoutError, aiohttp.ClientError, ValueError):  # ValueError: a line beyond the read buffer
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


def _apply(event: Object, objects: dict[str, Object]) -> bool:
    """Apply a watch event. False: an error, half an event or an unknown type, so list again."""
    subject = event.get("object")
    if not isinstance(subject, dict):
        return False
    uid = (subject.get("metadata") or {}).get("uid")
    match event.get("type"):
        case "BOOKMARK":
            return True
        case "ADDED" | "MODIFIED" if uid:
            objects[uid] = subject
            return True
        case "DELETED" if uid:
            objects.pop(uid, None)
            return True
        case _:
            return False


def _error(status: int, answer: Object, call: str, retry_after: str | None) -> KubernetesError:
    message = str(answer.get("message") or "no Status object in the answer")
    error = KubernetesError(status, str(answer.get("reason") or ""), f"{call}: {message}", answer)
    asked = retry_after or str(error.details.get("retryAfterSeconds") or "")
    error.retry_after = min(float(asked), LONGEST_RETRY_AFTER) if asked.isdecimal() else None
    return error
