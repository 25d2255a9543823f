"""Credentials that are looked up anew when AWS calls them expired.

botocore refreshes what tells its own end. It does not refresh before that end, nor a key and token that
somebody else renews in a file: both are met by asking the default chain again.
"""

import logging
from threading import Lock
from typing import Any

import botocore.session
from botocore.credentials import Credentials, ReadOnlyCredentials
from botocore.exceptions import BotoCoreError, ClientError, CredentialRetrievalError, NoCredentialsError

from gpu_runbooks.activities.aws.refusals import Refusal, meaning_of_code

log = logging.getLogger(__name__)

RENEWED = "gpu_runbooks_renewed"
"""Key in the context of one call: credentials were looked up anew on its account."""


class RenewableCredentials(Credentials):
    """What the default chain of botocore finds, now or when it was last asked again."""

    def __init__(self) -> None:
        super().__init__("", "", method="default-chain")
        self._lock = Lock()
        self._found: Credentials | None = None

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """Key and token to sign one request with.

        Raises `NoCredentialsError` where there are none, and `CredentialRetrievalError` where they could not
        be fetched, whatever the reason: then the request is not sent.
        """
        try:
            with self._lock:
                found = self._found = self._found or _look_up()
            if found is None:
                raise NoCredentialsError
            return found.get_frozen_credentials()
        except (NoCredentialsError, CredentialRetrievalError):
            raise
        except (ClientError, BotoCoreError, RuntimeError, OSError, ValueError) as error:
            raise CredentialRetrievalError(provider=self.method, error_msg=str(error)) from error

    def renew(self) -> None:
        """Ask the chain again. What was there stays where the chain gives nothing."""
        try:
            found = _look_up()
        except (ClientError, BotoCoreError, RuntimeError, OSError, ValueError) as error:
            log.warning("AWS calls the credentials expired, and new ones could not be fetched: %s", error)
            return
        if found is not None:
            with self._lock:
                self._found = found

    def load_credentials(self) -> "RenewableCredentials":
        """Botocore asks its credential provider by this name."""
        return self

    def attach(self, client: Any, *, try_again: bool) -> None:
        """Renew when a call of the client is refused as expired: once a call, then sent again or not."""

        def on_answer(response: Any, request_dict: dict[str, Any], **_: Any) -> float | None:
            context = request_dict["context"]
            if response is None or RENEWED in context:
                return None
            http, parsed = response
            error = parsed.get("Error", {})
            meaning = meaning_of_code(error.get("Code", ""), error.get("Message", ""), http.status_code)
            if meaning is not Refusal.EXPIRED:
                return None
            context[RENEWED] = True
            self.renew()
            return 0.0 if try_again else None

        client.meta.events.register("needs-retry", on_answer)


def _look_up() -> Credentials | None:
    return botocore.session.Session().get_credentials()
