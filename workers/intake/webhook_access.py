"""Who may post to the webhook: whoever has the bearer token, or, without a token, this machine alone.

Alertmanager can send a bearer token and sign nothing, so the token is the whole of it.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

SHORTEST_TOKEN = 8


@dataclass(frozen=True)
class Access:
    """Where the webhook listens, and the token that it demands; None on loopback without one."""

    host: str
    port: int
    token: str | None

    def permits(self, authorizations: Sequence[str]) -> bool:
        """Whether a request with these Authorization headers may come in. Two headers are one too many."""
        if self.token is None:
            return True
        if len(authorizations) != 1:
            return False
        scheme, _, credentials = authorizations[0].partition(" ")
        given = credentials.encode(errors="surrogateescape")
        return hmac.compare_digest(given, self.token.encode()) and scheme.lower() == "bearer"


def access(listen: str, token_file: Path | None) -> Access:
    """Read where to listen and the token.

    Raises `ValueError` for an address that is none, a token too short to be one, and an address that others
    can reach while there is no token; `OSError` where the token's file cannot be read.
    """
    host, port = _address(listen)
    if token_file is None:
        if not _is_loopback(host):
            raise ValueError(
                f"listening on {listen} without a token would let anyone in the network request reboots: set "
                "GPU_RUNBOOKS_WEBHOOK_TOKEN_FILE, or listen on 127.0.0.1"
            )
        return Access(host, port, None)
    # Editors and `kubectl create secret` leave a newline at the end; a request never carries one.
    token = token_file.read_text(encoding="utf-8").rstrip("\r\n")
    if len(token) < SHORTEST_TOKEN or token != token.strip():
        raise ValueError(
            f"the webhook's token in {token_file} must have at least {SHORTEST_TOKEN} characters and no "
            "space around it; `openssl rand -hex 32` makes one"
        )
    return Access(host, port, token)


def _address(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"write the address to listen on as host:port, such as 0.0.0.0:8080; not {listen!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False  # a name may lead anywhere, and no host at all is every address
