"""A reboot by the site's own command, such as a script around ssh, IPMI or a hypervisor's tool.

The command gets NODE_NAME, INSTANCE_ID, PROVIDER_ID, INCIDENT and REASON in its environment, beside PATH and
HOME, and nothing else: above all no AWS credentials of the worker. It says by its exit code what it did:

- 0: the reboot was asked for. The proof decides whether it happened.
- 75 (EX_TEMPFAIL): it was surely not asked for. It is tried again after another look at the node.
- 77 (EX_NOPERM): it was refused. A person has to mend that.
- any other: nobody knows, and the proof decides, as after a time-out. It is not run again.

Of what ssh and sudo write the plain cases are read as well, so that `ssh host sudo reboot` will do.
"""

import os
import re
import shlex
from collections import defaultdict
from datetime import UTC, datetime

from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.aws.connection import Aws
from gpu_runbooks.activities.aws.ec2 import require_fresh, require_running
from gpu_runbooks.activities.aws.site_command import Ended, SiteCommand
from gpu_runbooks.activities.model.repair import RebootInstance, RebootRequested

SETTING = "GPU_RUNBOOKS_REBOOT_COMMAND"

LIMIT_SECONDS = 40.0
"""How long a command may take to ask for a reboot."""

INHERITED = ("PATH", "HOME")

ASKED, NOT_ASKED, REFUSED = 0, os.EX_TEMPFAIL, os.EX_NOPERM
SSH_FAILED = 255
"""Of ssh's own failures, before and after the remote command ran alike."""

ANOTHER_HOST = re.compile(
    r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key verification failed|Host key for \S+ has changed"
    r"|Offending \w+ key in|key_verify failed",
    re.IGNORECASE,
)
IN_SESSION = re.compile(
    r"closed by remote host|client_loop:|Read from remote host|packet_write_|Write failed|Broken pipe"
    r"|Timeout, server|Connection reset|Connection to \S+ closed",
    re.IGNORECASE,
)
"""Signs that ssh had a session, or may have had one, when it failed."""
BEFORE_SESSION = re.compile(
    r"(?:kex|ssh|banner)_exchange_identification:|banner exchange|stdio forwarding failed"
    r"|open failed: connect|Could not resolve host|Unable to negotiate with"
    r"|^(?:ssh: .*: )?(?:connect to host .*: )?(?:Connection timed out|Connection refused|No route to host"
    r"|Network is unreachable|Operation timed out|Host is down)\s*$",
    re.IGNORECASE,
)
BESIDE_IT = re.compile(
    r"Connection (?:closed|reset) by \S+ port \d+|Connection to \S+ port \d+ timed out|Connection closed\s*$"
    r"|Pseudo-terminal will not be allocated"
)
"""Lines that ssh writes beside a failure before the session. Alone they may also be about a session."""
NO_PERMISSION = re.compile(
    r"^sudo: .*(?:password is required|terminal is required|may not run|no tty present|must have a tty"
    r"|incorrect password|account validation failure|not allowed)"
    r"|is not in the sudoers file|not allowed to (?:execute|run)|Interactive authentication required"
    r"|Permission denied|Operation not permitted|must be (?:root|superuser)|Access denied"
    r"|Too many authentication failures",
    re.IGNORECASE | re.MULTILINE,
)

LONGEST_SAID = 500

_commands: dict[str, SiteCommand] = defaultdict(SiteCommand)
"""By node name: while one runs for a node, or cannot be killed, no other is started for it."""


async def run_reboot_command(aws: Aws, command: str, request: RebootInstance) -> RebootRequested:
    """Run the site's command, once, for a node whose EC2 instance runs, or that has none.

    Raises as `reboot_instance` does for the instance; BAD_INPUT for a command that is not set or cannot be
    started; NOT_SENT, FORBIDDEN and OUTCOME_UNKNOWN for what the command says, or fails to say in time.
    """
    words = _words(command)
    node = request.identity.name
    if request.identity.instance_id:
        await require_running(aws, request)
    require_fresh(request.not_after)
    runner = _commands[node]
    if (pid := runner.running) is not None:
        raise ApplicationError(
            f"no reboot of {node} was asked for: an earlier {words[0]} for it (process {pid}) is still there",
            type=errors.NOT_SENT,
        )
    try:
        ended = await runner.run(words, _environment(request), LIMIT_SECONDS)
    except (OSError, ValueError) as error:
        raise errors.refusal(
            errors.BAD_INPUT,
            f"no reboot of {node} was asked for: {words[0]} of {SETTING} cannot be started: {error}. Mend "
            "the setting, or put the command where the cloud worker can run it",
        ) from error
    finally:
        if runner.running is None:
            _commands.pop(node, None)
    if refused := refusal_of(ended, f"{words[0]} for node {node}"):
        raise refused
    return RebootRequested(instance_id=request.identity.instance_id, requested_at=datetime.now(UTC))


def refusal_of(ended: Ended, what: str) -> ApplicationError | None:
    """What the end of the command means; None for a reboot that was asked for."""
    code, said = ended.exit_code, ended.output[-LONGEST_SAID:] or "nothing"
    if ANOTHER_HOST.search(ended.output):
        return errors.refusal(
            errors.FORBIDDEN,
            f"{what} met a host key that is not the known one (exit {code}): it may be another machine. Find "
            "out whose it is, and correct the known hosts by hand; never switch the check off. It said: "
            f"{said}",
        )
    if code == ASKED:
        return None
    if code is None:
        return _unknown(f"{what} had not ended after {LIMIT_SECONDS:.0f} s. It said: {said}")
    if code == REFUSED:
        return _forbidden(what, code, said)
    if code == NOT_ASKED:
        return _not_sent(what, code, said)
    if code == SSH_FAILED and _is_before_session(ended.output):
        return _not_sent(what, code, said)
    if code == SSH_FAILED and IN_SESSION.search(ended.output):
        return _unknown(f"{what} lost its connection (exit {code}). It said: {said}")
    if NO_PERMISSION.search(ended.output):
        return _forbidden(what, code, said)
    return _unknown(f"{what} ended with {code}. It said: {said}")


def _is_before_session(output: str) -> bool:
    """Whether all that was written is about a connection that did not come about.

    Any other line may be the remote command's, so that the failure may have come after it.
    """
    lines = [line for line in output.splitlines() if line.strip() and not BESIDE_IT.match(line)]
    return bool(lines) and all(map(BEFORE_SESSION.search, lines))


def _not_sent(what: str, code: int, said: str) -> ApplicationError:
    return ApplicationError(
        f"{what} asked for no reboot (exit {code}); it is tried again later. It said: {said}",
        type=errors.NOT_SENT,
    )


def _forbidden(what: str, code: int, said: str) -> ApplicationError:
    return errors.refusal(
        errors.FORBIDDEN,
        f"{what} was refused (exit {code}): give it the right to reboot there. It said: {said}",
    )


def _unknown(message: str) -> ApplicationError:
    return errors.refusal(
        errors.OUTCOME_UNKNOWN, f"{message}. Nobody knows whether it took effect, so it is not run again"
    )


def _words(command: str) -> list[str]:
    """The command and its arguments. Raises BAD_INPUT."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise errors.refusal(errors.BAD_INPUT, f"{SETTING} cannot be split into words: {error}") from error
    if not words:
        raise errors.refusal(
            errors.BAD_INPUT,
            f"the policy says `reboot: command`, but {SETTING} of the cloud worker is not set: set it to the "
            "command, or have the pool rebooted in another way",
        )
    return words


def _environment(request: RebootInstance) -> dict[str, str]:
    """All that the command is told. No name or text of it passes through a shell."""
    told = {
        "NODE_NAME": request.identity.name,
        "INSTANCE_ID": request.identity.instance_id,
        "PROVIDER_ID": request.identity.provider_id,
        "INCIDENT": request.incident,
        "REASON": request.reason[: errors.LONGEST_MESSAGE],
    }
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return inherited | {name: value.replace("\0", "") for name, value in told.items()}
