"""Whether a server that is starting answers yet."""

import ssl
from collections.abc import Mapping
from pathlib import Path

import aiohttp

PATIENCE = aiohttp.ClientTimeout(total=2)


async def answers(
    url: str, *, headers: Mapping[str, str] | None = None, authority: Path | None = None
) -> bool:
    """Whether the server answers 200. A certificate is trusted if `authority` signed it.

    Without `authority` any certificate will do: the servers that are asked so made one a second ago, and
    nothing is sent to them.
    """
    if authority and not authority.exists():
        return False
    try:
        trust = ssl.create_default_context(cafile=str(authority)) if authority else False
        async with (
            aiohttp.ClientSession(timeout=PATIENCE) as session,
            session.get(url, headers=headers, ssl=trust) as response,
        ):
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError, ConnectionError, ssl.SSLError):  # half a certificate
        return False
