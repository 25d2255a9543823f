"""Credentials: read anew when refused, shared by all, and never lost to a file that cannot be read."""

import asyncio
import logging

import pytest
from kubernetes.aio import client, config

from gpu_runbooks.activities.kubernetes import credentials as module
from gpu_runbooks.activities.kubernetes.credentials import Credentials, of_environment


class Source:
    """A place of tokens that counts how often it is read."""

    def __init__(self, *tokens):
        self._tokens = list(tokens)
        self.read_times = 0

    async def read(self):
        self.read_times += 1
        await asyncio.sleep(0)
        token = self._tokens.pop(0) if len(self._tokens) > 1 else self._tokens[0]
        if isinstance(token, Exception):
            raise token
        return configured(token)


def configured(token):
    configuration = client.Configuration()
    if token:
        configuration.api_key["BearerToken"] = token
    return configuration


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(module, "READ_INTERVAL", 0.0)


@pytest.mark.parametrize("token", ["Bearer abc\n", "bearer abc", "Bearer  abc \r\n"])
async def test_a_header_has_no_line_end(token):
    assert (await Credentials(configured(token)).current()).split(" ")[1:] == ["abc"]


@pytest.mark.parametrize("token", [None, "", "Bearer ", "bearer \n"])
async def test_no_token_is_no_header(token):
    assert await Credentials(configured(token)).current() == ""


async def test_all_who_are_refused_at_once_share_one_reading(at_once):
    source = Source("Bearer new")
    credentials = Credentials(configured("Bearer old"), source.read)
    await asyncio.gather(*(credentials.replace("Bearer old") for _ in range(50)))
    await credentials.replace("Bearer old")  # comes late, with a token that is replaced already
    assert (await credentials.current(), source.read_times) == ("Bearer new", 1)


async def test_a_token_that_stays_refused_is_read_at_a_bounded_rate(monkeypatch):
    monkeypatch.setattr(module, "READ_INTERVAL", 0.2)
    source = Source("Bearer old")
    credentials = Credentials(configured("Bearer old"), source.read)
    clock = asyncio.get_running_loop().time
    started = clock()
    for _ in range(3):
        await asyncio.gather(*(credentials.replace("Bearer old") for _ in range(20)))
    assert source.read_times == 3
    assert clock() - started >= 2 * 0.2


@pytest.mark.parametrize(
    "failure", [config.ConfigException("empty"), OSError("gone"), ValueError("no JSON"), "", None]
)
async def test_what_cannot_be_read_leaves_the_old_token(at_once, caplog, failure):
    source = Source(failure, "Bearer new")
    credentials = Credentials(configured("Bearer old"), source.read, source="the test")
    await credentials.replace("Bearer old")
    assert await credentials.current() == "Bearer old"
    assert [record.levelno for record in caplog.records if "the test" in record.message] == [logging.WARNING]
    await credentials.replace("Bearer old")
    assert await credentials.current() == "Bearer new"


async def test_a_reading_that_hangs_is_given_up(at_once, monkeypatch):
    monkeypatch.setattr(module, "READ_TIMEOUT", 0.1)

    async def hang():
        await asyncio.Event().wait()

    credentials = Credentials(configured("Bearer old"), hang)
    async with asyncio.timeout(10):
        await credentials.replace("Bearer old")
    assert await credentials.current() == "Bearer old"


async def test_one_who_gives_up_does_not_end_the_reading_of_others(at_once):
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def read():
        begun.set()
        await go_on.wait()
        return configured("Bearer new")

    credentials = Credentials(configured("Bearer old"), read)
    impatient, patient = (asyncio.create_task(credentials.replace("Bearer old")) for _ in range(2))
    await begun.wait()
    impatient.cancel()
    go_on.set()
    await patient
    assert await credentials.current() == "Bearer new"


async def test_a_pods_token_is_looked_at_again_before_it_expires(at_once):
    source = Source("Bearer new")
    credentials = Credentials(configured("Bearer old"), source.read, longest_use=0.0)
    assert await credentials.current() == "Bearer new"


async def test_without_kubeconfig_the_pods_service_account_is_used(monkeypatch, tmp_path):
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("first\n")
    authority.write_text("any")
    monkeypatch.setattr(config.incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(config.incluster_config, "SERVICE_CERT_FILENAME", str(authority))
    read, source, longest_use = of_environment()
    credentials = Credentials(await read(), read, source=source, longest_use=longest_use)
    first = await credentials.current()
    token.write_text("second\n")
    assert await credentials.current() == first
    await credentials.replace(first)
    assert (first, await credentials.current()) == ("bearer first", "bearer second")
    assert "service account" in source
