"""The site's own command for a reboot: what it is told, how long it may take, and what its end means."""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cloud.conftest import Wire, identity, launch_alone, reboot_of, set_state, soon
from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.aws import reboot_command
from gpu_runbooks.activities.aws.connection import Aws
from gpu_runbooks.activities.aws.reboot_command import refusal_of, run_reboot_command
from gpu_runbooks.activities.aws.site_command import LONGEST_OUTPUT, Ended
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.repair import RebootRequested

CHANGED_KEY = """@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
Host key verification failed."""

ON_PREMISES = identity("", name="gpu-rack-7", provider_id="", zone="")

ENDS = [
    # exit code, output, error type; None where a reboot was asked for
    (0, "", None),
    (0, "Connection to 10.4.7.21 closed by remote host.", None),
    (75, "BMC is busy", errors.NOT_SENT),
    (75, "", errors.NOT_SENT),
    (77, "not this rack", errors.FORBIDDEN),
    (255, "Connection to 10.4.7.21 closed by remote host.", errors.OUTCOME_UNKNOWN),
    (255, "Connection to 10.4.7.21 closed by remote host.\r\n", errors.OUTCOME_UNKNOWN),
    (255, "client_loop: send disconnect: Broken pipe", errors.OUTCOME_UNKNOWN),
    (255, "client_loop: send disconnect: Connection timed out", errors.OUTCOME_UNKNOWN),
    (255, "Read from remote host 10.4.7.21: Connection timed out", errors.OUTCOME_UNKNOWN),
    (255, "Timeout, server 10.4.7.21 not responding.", errors.OUTCOME_UNKNOWN),
    (255, "Connection reset by 10.4.7.21 port 22", errors.OUTCOME_UNKNOWN),
    (255, "Connection closed by 10.4.7.21 port 22", errors.OUTCOME_UNKNOWN),
    (255, "", errors.OUTCOME_UNKNOWN),
    (255, "Connection timed out\nConnection to gpu-a1 closed by remote host.", errors.OUTCOME_UNKNOWN),
    (255, "Rebooting.\nConnection timed out", errors.OUTCOME_UNKNOWN),
    (255, "debug1: Sending command: systemctl reboot\nConnection timed out", errors.OUTCOME_UNKNOWN),
    (255, "Shared connection to 10.4.7.21 closed.", errors.OUTCOME_UNKNOWN),
    (255, "Connection timed out", errors.NOT_SENT),
    (255, "ssh: connect to host gpu-a1 port 22: Host is down", errors.NOT_SENT),
    (255, "ssh: connect to host gpu-a1 port 22: Connection refused\nConnection closed", errors.NOT_SENT),
    (255, "Unable to negotiate with 10.4.7.21 port 22: no matching host key type found.", errors.NOT_SENT),
    (
        255,
        "channel 0: open failed: connect failed: Timeout\nstdio forwarding failed\nConnection closed",
        errors.NOT_SENT,
    ),
    (255, "ssh: connect to host 10.4.7.21 port 22: Connection timed out\r\n", errors.NOT_SENT),
    (255, "ssh: connect to host 10.4.7.21 port 22: Connection refused", errors.NOT_SENT),
    (255, "ssh: connect to host 10.4.7.21 port 22: No route to host", errors.NOT_SENT),
    (255, "ssh: Could not resolve hostname gpu-a1: Name or service not known", errors.NOT_SENT),
    (255, "kex_exchange_identification: Connection closed by remote host", errors.NOT_SENT),
    (
        255,
        "kex_exchange_identification: read: Connection reset by peer\nConnection reset by 10.4.7.21 port 22",
        errors.NOT_SENT,
    ),
    (
        255,
        "Connection timed out during banner exchange\nConnection to 10.4.7.21 port 22 timed out",
        errors.NOT_SENT,
    ),
    (255, CHANGED_KEY, errors.FORBIDDEN),
    (75, CHANGED_KEY, errors.FORBIDDEN),
    (0, CHANGED_KEY, errors.FORBIDDEN),
    (255, "No ED25519 host key is known\nHost key verification failed.", errors.FORBIDDEN),
    (255, "Host key for 10.4.7.21 has changed and you have requested strict checking.", errors.FORBIDDEN),
    (255, "Offending ED25519 key in /root/.ssh/known_hosts:4", errors.FORBIDDEN),
    (255, "root@10.4.7.21: Permission denied (publickey).", errors.FORBIDDEN),
    (1, "sudo: a password is required", errors.FORBIDDEN),
    (1, "sudo: a password is required\r\nConnection to 10.4.7.21 closed.", errors.FORBIDDEN),
    (1, "sudo: a terminal is required to read the password", errors.FORBIDDEN),
    (1, "sudo: sorry, you must have a tty to run sudo", errors.FORBIDDEN),
    (1, "sudo: 3 incorrect password attempts", errors.FORBIDDEN),
    (1, "sudo: account validation failure, is your account locked?", errors.FORBIDDEN),
    (1, "runbooks is not in the sudoers file.", errors.FORBIDDEN),
    (1, "Call to Reboot failed: Interactive authentication required.", errors.FORBIDDEN),
    (1, "sudo: unable to resolve host gpu-a1", errors.OUTCOME_UNKNOWN),
    (1, "ssh: connect to host 10.4.7.21 port 22: Connection timed out", errors.OUTCOME_UNKNOWN),
    (1, "", errors.OUTCOME_UNKNOWN),
    (127, "sh: reboot: not found", errors.OUTCOME_UNKNOWN),
    (-signal.SIGKILL, "", errors.OUTCOME_UNKNOWN),
    (None, "", errors.OUTCOME_UNKNOWN),
]


@pytest.fixture
def script(tmp_path: Path) -> Any:
    """Make a command of a Python script, which notes that it ran; the note is `ran` beside it."""

    def make(text: str, name: str = "reboot script") -> str:
        path = tmp_path / f"{name}.py"
        path.write_text(
            "import os, pathlib, sys, time\n"
            f"with open({str(tmp_path / 'ran')!r}, 'a') as ran:\n"
            "    ran.write(f'{os.getpid()}\\n')\n" + text
        )
        return f"{sys.executable} -S '{path}'"

    return make


@pytest.fixture
def ran(tmp_path: Path) -> Any:
    """Process ids of the commands that ran."""

    def read() -> list[int]:
        note = tmp_path / "ran"
        return [int(line) for line in note.read_text().splitlines()] if note.exists() else []

    return read


@pytest.mark.parametrize(("code", "output", "error_type"), ENDS)
def test_what_the_end_of_a_command_means(code: int | None, output: str, error_type: str | None) -> None:
    refused = refusal_of(Ended(code, output), "reboot.sh for node gpu-a1")

    if error_type is None:
        assert refused is None
        return
    assert refused is not None
    assert refused.type == error_type
    assert refused.non_retryable is (error_type != errors.NOT_SENT)
    assert refused.message.startswith("reboot.sh for node gpu-a1 ")


async def test_the_command_is_told_what_to_reboot_and_nothing_more(
    aws: Aws, wire: Wire, script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = launch_alone(aws)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "secret")
    monkeypatch.setenv("TEMPORAL_API_KEY", "secret")
    told = tmp_path / "told"
    command = script(f"pathlib.Path({str(told)!r}).write_text(repr((sys.argv[1:], dict(os.environ))))")
    reason = "xid 79; $(touch /tmp/no) `no` \0 'quoted\nsecond line"

    requested = await run_reboot_command(
        aws,
        f"{command} --hard 'two words' ';' '$HOME'",
        reboot_of(node).model_copy(update={"reason": reason}),
    )

    arguments, environment = eval(told.read_text())
    assert requested.instance_id == node.instance_id
    assert arguments == ["--hard", "two words", ";", "$HOME"]
    for name in ("LC_CTYPE", "__CF_USER_TEXT_ENCODING"):
        environment.pop(name, None)  # Python's own
    assert environment == {
        "PATH": os.environ["PATH"],
        "HOME": os.environ["HOME"],
        "NODE_NAME": node.name,
        "INSTANCE_ID": node.instance_id,
        "PROVIDER_ID": node.provider_id,
        "INCIDENT": "node/test/gpu-a1",
        "REASON": reason.replace("\0", ""),
    }
    assert wire.sent["RebootInstances"] == 0


async def test_a_machine_that_is_none_of_ec2s_is_rebooted_without_asking_ec2(
    aws: Aws, wire: Wire, script: Any, ran: Any
) -> None:
    requested = await run_reboot_command(aws, script(""), reboot_of(ON_PREMISES))

    assert requested.instance_id == ""
    assert len(ran()) == 1
    assert not wire.sent


@pytest.mark.parametrize("kind", ["stopped", "unknown", "foreign"])
async def test_an_instance_that_is_not_the_nodes_running_machine_is_not_touched(
    aws: Aws, wire: Wire, script: Any, ran: Any, kind: str
) -> None:
    node = launch_alone(aws, owner={} if kind == "foreign" else {"eks:cluster-name": "test"})
    if kind == "stopped":
        wire.change(aws.ec2, "DescribeInstances", set_state(node.instance_id, "stopped"))
    if kind == "unknown":
        node = identity("i-0aaaaaaaaaaaaaaa1")

    with pytest.raises(ApplicationError) as raised:
        await run_reboot_command(aws, script(""), reboot_of(node))

    expected = {
        "stopped": errors.INSTANCE_NOT_RUNNING,
        "unknown": errors.INSTANCE_UNKNOWN,
        "foreign": errors.FORBIDDEN,
    }
    assert raised.value.type == expected[kind]
    assert ran() == []


async def test_a_look_that_is_too_old_runs_nothing(aws: Aws, script: Any, ran: Any) -> None:
    late = reboot_of(ON_PREMISES).model_copy(update={"not_after": soon(-1)})

    with pytest.raises(ApplicationError, match="held until") as raised:
        await run_reboot_command(aws, script(""), late)

    assert raised.value.type == errors.NOT_SENT
    assert ran() == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("", "GPU_RUNBOOKS_REBOOT_COMMAND of the cloud worker is not set"),
        ("   ", "is not set"),
        ("reboot 'unclosed", "cannot be split"),
        ("/nowhere/reboot.sh gpu", "cannot be started"),
        ("/etc", "cannot be started"),
    ],
)
async def test_a_command_that_cannot_run_names_the_setting(aws: Aws, command: str, said: str) -> None:
    with pytest.raises(ApplicationError, match=said) as raised:
        await run_reboot_command(aws, command, reboot_of(ON_PREMISES))

    assert (raised.value.type, raised.value.non_retryable) == (errors.BAD_INPUT, True)
    assert "GPU_RUNBOOKS_REBOOT_COMMAND" in raised.value.message


async def test_the_end_of_what_it_wrote_is_told(aws: Aws, script: Any) -> None:
    command = script("sys.stdout.write('x' * 200_000)\nsys.stderr.write('\\nno such BMC')\nsys.exit(75)")

    with pytest.raises(ApplicationError, match="no such BMC") as raised:
        await run_reboot_command(aws, command, reboot_of(ON_PREMISES))

    assert raised.value.type == errors.NOT_SENT
    assert len(raised.value.message) < LONGEST_OUTPUT / 8


async def test_a_command_that_does_not_end_is_killed_with_its_children(
    aws: Aws, script: Any, ran: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its child ignores SIGTERM, and holds the output open."""
    monkeypatch.setattr(reboot_command, "LIMIT_SECONDS", 1.0)
    command = script(
        "os.fork()\nimport signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)"
    )

    with pytest.raises(ApplicationError, match="had not ended after 1 s") as raised:
        await run_reboot_command(aws, command, reboot_of(ON_PREMISES))

    assert (raised.value.type, raised.value.non_retryable) == (errors.OUTCOME_UNKNOWN, True)
    [leader] = ran()
    await gone(leader)


async def test_what_a_command_leaves_behind_is_not_waited_for(aws: Aws, script: Any, ran: Any) -> None:
    command = script("if os.fork() == 0:\n    time.sleep(600)\nprint('asked')")

    assert isinstance(await run_reboot_command(aws, command, reboot_of(ON_PREMISES)), RebootRequested)

    os.killpg(ran()[0], signal.SIGKILL)


async def test_a_command_that_cannot_be_killed_is_left_and_no_other_is_started_beside_it(
    aws: Aws, script: Any, ran: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reboot_command, "LIMIT_SECONDS", 1.0)
    monkeypatch.setattr("gpu_runbooks.activities.aws.site_command.KILL_GRACE", 0.1)
    kill = os.killpg
    monkeypatch.setattr("os.killpg", lambda *_: None)  # as for a process that hangs in the kernel
    command = script("time.sleep(600)")

    with pytest.raises(ApplicationError, match="had not ended") as first:
        await run_reboot_command(aws, command, reboot_of(ON_PREMISES))
    with pytest.raises(ApplicationError, match="is still there") as second:
        await run_reboot_command(aws, command, reboot_of(ON_PREMISES))

    assert (first.value.type, second.value.type) == (errors.OUTCOME_UNKNOWN, errors.NOT_SENT)
    [hung] = ran()
    kill(hung, signal.SIGKILL)
    await gone(hung)
    assert await run_reboot_command(aws, script("", "another"), reboot_of(ON_PREMISES))


async def test_one_at_a_time_per_node(aws: Aws, script: Any, ran: Any, tmp_path: Path) -> None:
    go = tmp_path / "go"
    command = script(f"while not os.path.exists({str(go)!r}):\n    time.sleep(0.02)")
    other: NodeIdentity = ON_PREMISES.model_copy(update={"name": "gpu-rack-8"})
    first = asyncio.create_task(run_reboot_command(aws, command, reboot_of(ON_PREMISES)))
    beside = asyncio.create_task(run_reboot_command(aws, command, reboot_of(other)))
    while len(ran()) < 2:
        await asyncio.sleep(0.02)

    with pytest.raises(ApplicationError, match="is still there") as raised:
        await run_reboot_command(aws, command, reboot_of(ON_PREMISES))
    go.touch()

    assert raised.value.type == errors.NOT_SENT
    assert await first
    assert await beside
    assert len(ran()) == 2


async def test_a_cancelled_activity_leaves_no_command_behind(aws: Aws, script: Any, ran: Any) -> None:
    running = asyncio.create_task(run_reboot_command(aws, script("time.sleep(600)"), reboot_of(ON_PREMISES)))
    while not ran():
        await asyncio.sleep(0.02)

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    await gone(ran()[0])


async def gone(group: int) -> None:
    """Wait until no process of a group is left but those that nobody has waited for."""
    while any(fields[:1] != ["Z"] for fields in members_of(group)):
        await asyncio.sleep(0.02)


def members_of(group: int) -> list[list[str]]:
    """State, parent, group and so on of each process of the group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = stat.read_text().rpartition(") ")[2].split()
            found += [fields] if fields[2] == str(group) else []
    return found
