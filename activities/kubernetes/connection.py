"""One call to the API server: its limits, its credentials, and what a refusal of these leads to."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client

from gpu_runbooks.activities.kubernetes.credentials import Credentials
from gpu_runbooks.activities.kubernetes.error import KubernetesError, error_of

CONNECT_TIMEOUT = 10.0
"""Seconds until a connection stands, TLS included."""


def limits(seconds: float) -> aiohttp.ClientTimeout:
    """Limits for a call of so many seconds. None is open: a half-open connection would hang for ever."""
    return aiohttp.ClientTimeout(
        total=seconds, connect=seconds, sock_connect=min(seconds, CONNECT_TIMEOUT), sock_read=seconds
    )


class ApiConnection:
    """The official client's connection pool, with the `Authorization` header of our own credentials."""

    def __init__(self, configuration: client.Configuration, credentials: Credentials) -> None:
        self._host = configuration.host
        self._credentials = credentials
        self._api = client.ApiClient(configuration)

    async def close(self) -> None:
        await self._credentials.close()
        await self._api.close()

    async def send(
        self,
        method: str,
        path: str,
        *,
        timeout: aiohttp.ClientTimeout,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> aiohttp.ClientResponse:
        """One call; refused with 401, it is made once more with the credentials read anew.

        That is safe for writes too: what is refused with 401 was not done. The caller closes the response.
        Raises `TimeoutError`, `aiohttp.ClientError` and `OSError`.
        """
        url = self._host + path + ("?" + urlencode(query) if query else "")

        async def attempt(authorization: str) -> aiohttp.ClientResponse:
            headers = {"Content-Type": content_type, "Accept": "application/json"}
            if authorization:
                headers["Authorization"] = authorization
            answer = await self._api.rest_client.request(
                method, url, headers=headers, body=body, _request_timeout=timeout
            )
            response: aiohttp.ClientResponse = answer.response
            if response.history:
                response.close()
                raise aiohttp.ClientError(
                    f"redirected to {response.url.origin()}: an API server does not do that, so a proxy or "
                    "load balancer answers in its place"
                )
            return response

        authorization = await self._credentials.current()
        response = await attempt(authorization)
        if response.status != 401:
            return response
        response.close()
        await self._credentials.replace(authorization)
        return await attempt(await self._credentials.current())

    def error(self, response: aiohttp.ClientResponse, content: bytes, call: str) -> KubernetesError:
        """The error that a response with this content is."""
        error = error_of(response.status, response.headers, content, call)
        if response.status != 401:
            return error
        message = f"{error.message} (credentials from {self._credentials.source}, read again)"
        return KubernetesError(401, error.reason, message, error.body)
