"""The bearer token of one identity: where it comes from, and how it is read anew when it is refused.

The official loaders read a kubeconfig once, and a Pod's token file once a minute. Tokens are rotated and
revoked at any time, so a token that the API server refuses is read again at once.
"""

import asyncio
import logging
import math
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import yaml
from kubernetes.aio import client, config

READ_TIMEOUT = 10.0
"""Seconds for reading credentials: a kubeconfig may name a program that has to run for them."""

READ_INTERVAL = 1.0
"""Seconds at least between two readings, however many calls are refused."""

POD_TOKEN_USE = 60.0
"""Seconds for which a Pod's token is used before its file is looked at again: kubelets rotate it."""

POD_TOKEN_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")

UNREADABLE = (
    config.ConfigException,
    OSError,  # TimeoutError too
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    yaml.YAMLError,
)
"""What the official loaders raise on files that are missing, being written or malformed."""

Read = Callable[[], Awaitable[client.Configuration]]

logger = logging.getLogger(__name__)


class Credentials:
    """The `Authorization` header of one identity. Safe to share between tasks."""

    def __init__(
        self,
        configuration: client.Configuration,
        read: Read | None = None,
        *,
        source: str = "the client's configuration",
        longest_use: float = math.inf,
    ) -> None:
        self._authorization = _authorization_of(configuration)
        self._read = read
        self.source = source
        """Where they come from, for a person."""
        self._longest_use = longest_use
        self._read_at = -math.inf
        """Loop time of the last reading after the first."""
        self._in_use_since = _now()
        self._reading: asyncio.Task[None] | None = None

    async def current(self) -> str:
        """The header to send, empty for none (a client certificate, or nobody)."""
        if _now() - self._in_use_since >= self._longest_use:
            await self._read_again()
        return self._authorization

    async def replace(self, refused: str) -> None:
        """Read the credentials anew, unless that was done since `refused` was sent.

        Many calls that are refused at once share one reading. What cannot be read is logged, and the old
        header stays.
        """
        if self._authorization == refused:
            await self._read_again()

    async def close(self) -> None:
        """End a reading that nobody waits for any more."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read_again(self) -> None:
        if self._read is None:
            return
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._take_from(self._read))
        await asyncio.shield(self._reading)

    async def _take_from(self, read: Read) -> None:
        await asyncio.sleep(max(0.0, self._read_at + READ_INTERVAL - _now()))
        self._read_at = self._in_use_since = _now()
        try:
            async with asyncio.timeout(READ_TIMEOUT):
                found = _authorization_of(await read())
        except UNREADABLE as error:
            logger.warning("credentials could not be read again from %s: %r", self.source, error)
            return
        if found:
            self._authorization = found
        elif self._authorization:
            logger.warning("there is no token any more in %s; the old one stays in use", self.source)


def of_environment() -> tuple[Read, str, float]:
    """How to read the credentials of this process, where they are, and for how long one reading serves.

    `KUBECONFIG` comes first, else the Pod's service account.
    """
    if files := os.environ.get("KUBECONFIG"):
        return of_kubeconfig(files)
    return _read_pod, f"the Pod's service account token {POD_TOKEN_FILE}", POD_TOKEN_USE


def of_kubeconfig(files: str) -> tuple[Read, str, float]:
    """The same for kubeconfig files, one or several as in `KUBECONFIG`."""

    async def read() -> client.Configuration:
        configuration = _configuration()
        async with asyncio.timeout(READ_TIMEOUT):
            await config.load_kube_config(config_file=files, client_configuration=configuration)
        return configuration

    return read, f"kubeconfig {files}", math.inf


async def _read_pod() -> client.Configuration:
    configuration = _configuration()
    config.load_incluster_config(client_configuration=configuration, try_refresh_token=False)
    return configuration


def _configuration() -> client.Configuration:
    configuration = client.Configuration()
    configuration.connection_pool_maxsize = 500  # each wait of ours holds a watch open
    configuration.disable_strict_ssl_verification = True
    return configuration


def _authorization_of(configuration: client.Configuration) -> str:
    """Token files end with a newline more often than not; a header must not."""
    words = str(configuration.api_key.get("BearerToken") or "").split()
    return " ".join(words) if len(words) > 1 else ""


def _now() -> float:
    return asyncio.get_running_loop().time()
