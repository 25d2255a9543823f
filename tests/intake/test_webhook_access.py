"""Who may post, and where the intake dares to listen."""

from pathlib import Path

import pytest

from gpu_runbooks.workers.intake.webhook_access import Access, access

TOKEN = "s3cret-demo"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    return file


@pytest.mark.parametrize(
    ("authorizations", "permitted"),
    [
        ([f"Bearer {TOKEN}"], True),
        ([f"bearer {TOKEN}"], True),
        ([], False),
        ([""], False),
        (["Bearer"], False),
        (["Bearer "], False),
        (["Bearer wrong"], False),
        ([f"Bearer {TOKEN}\n"], False),
        ([f"Bearer  {TOKEN}"], False),
        ([f"Bearer {TOKEN}x"], False),
        ([f"Basic {TOKEN}"], False),
        ([TOKEN], False),
        (["Bearer \udcff"], False),
        ([f"Bearer {TOKEN}", "Bearer wrong"], False),
        ([f"Bearer {TOKEN}", f"Bearer {TOKEN}"], False),
    ],
)
def test_the_token_alone_lets_in(token_file: Path, authorizations: list[str], permitted: bool) -> None:
    assert access("0.0.0.0:8080", token_file).permits(authorizations) is permitted


@pytest.mark.parametrize(
    ("listen", "host"),
    [("127.0.0.1:8080", "127.0.0.1"), ("localhost:8080", "localhost"), ("[::1]:8080", "::1")],
)
def test_loopback_needs_no_token(listen: str, host: str) -> None:
    assert access(listen, None) == Access(host, 8080, None)
    assert access(listen, None).permits([])


@pytest.mark.parametrize("listen", ["0.0.0.0:8080", "[::]:8080", ":8080", "10.0.0.7:8080", "intake:8080"])
def test_no_other_address_is_served_without_a_token(listen: str) -> None:
    with pytest.raises(ValueError, match="GPU_RUNBOOKS_WEBHOOK_TOKEN_FILE"):
        access(listen, None)


@pytest.mark.parametrize("content", ["", "\n", "   \n", "short", " padded-token ", "token-of-two-lines \n\n"])
def test_an_empty_or_weak_token_is_refused_on_every_address(token_file: Path, content: str) -> None:
    token_file.write_text(content)

    for listen in ("0.0.0.0:8080", "127.0.0.1:8080"):
        with pytest.raises(ValueError, match="at least 8 characters"):
            access(listen, token_file)


def test_a_missing_token_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        access("0.0.0.0:8080", tmp_path / "none")


@pytest.mark.parametrize("listen", ["8080", "127.0.0.1", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:70000"])
def test_an_address_that_is_none_is_refused(listen: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        access(listen, None)
