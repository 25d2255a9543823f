"""The policy file of a running role: what counts after it changed, and what is said about it."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from policy.factories import P5, SMALLEST, fault, node

from gpu_runbooks.activities.model.fault import FaultSource
from gpu_runbooks.workers.policy import policy_file
from gpu_runbooks.workers.policy.policy_file import REMINDER, PolicyFile
from gpu_runbooks.workers.settings import Settings
from gpu_runbooks.workflows.policy.file import PolicyError, load_policy
from gpu_runbooks.workflows.policy.yaml_lines import LARGEST

OTHER = SMALLEST.replace("max_unavailable: 3", "max_unavailable: 1")
BROKEN = SMALLEST.replace("max_unavailable: 3", "max_unavailable: 0")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(SMALLEST)
    return path


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def role(file: Path, clock: Clock) -> PolicyFile:
    return PolicyFile(Settings(policy=file, cluster="blue"), clock)


def settle(role: PolicyFile) -> None:
    """Look until the file is the same at two looks."""
    while not role.look():
        pass
    role.look()


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == policy_file.__name__]


def budget(role: PolicyFile) -> int | None:
    return role.plan(fault(FaultSource.XID, "79"), node(), P5).budget.max_unavailable


def test_changed_file_counts_at_the_second_look(role, file, caplog):
    caplog.set_level(logging.INFO)
    file.write_text(OTHER)
    assert not role.look()
    assert budget(role) == 3
    assert role.look()
    assert budget(role) == 1
    assert said(caplog) == [
        f"policy {load_policy(OTHER).digest} counts from now, before it {load_policy(SMALLEST).digest}"
    ]


def test_file_that_is_still_being_written_counts_when_it_is_whole(role, file, caplog):
    whole = f"{OTHER}faults:\n- name: a\n  match: {{source: xid, code: 79}}\n  ladder: block\n"
    for length in range(len(OTHER), len(whole), 10):  # some of these parts are policies too
        file.write_text(whole[:length])
        assert not role.look()
        assert budget(role) == 3
    file.write_text(whole)
    settle(role)
    assert role.policy == load_policy(whole)
    assert said(caplog) == []


def test_configmap_that_is_swapped_by_its_links(tmp_path):
    """The kubelet makes a new folder and renames a link to it; the file's own link stays."""
    for name, text in (("first", SMALLEST), ("second", OTHER)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.yaml").write_text(text)
    (tmp_path / "..data").symlink_to("first")
    (tmp_path / "policy.yaml").symlink_to("..data/policy.yaml")
    role = PolicyFile(Settings(policy=tmp_path / "policy.yaml"))
    assert budget(role) == 3
    (tmp_path / "..data_tmp").symlink_to("second")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    settle(role)
    assert (budget(role), role.problem) == (1, "")


def unreadable(file: Path) -> None:
    file.unlink()
    file.mkdir()


def vanished(file: Path) -> None:
    file.unlink()


def broken(file: Path) -> None:
    file.write_text(BROKEN)


def not_text(file: Path) -> None:
    file.write_bytes(SMALLEST.encode() + b"# \xff\n")


def too_large(file: Path) -> None:
    file.write_text(SMALLEST + "#" * LARGEST)


def emptied(file: Path) -> None:
    file.write_text("")


def endless(file: Path) -> None:
    file.write_text(f"{SMALLEST}probation: 9999999999d\n")


BAD: list[tuple[Callable[[Path], None], str, str]] = [
    (broken, "line 5: pools[0].budget.max_unavailable", "errors in line 5: pools[0].budget.max_unavailable"),
    (vanished, "the policy file of GPU_RUNBOOKS_POLICY cannot be read", "the policy file cannot be read"),
    (unreadable, "the policy file of GPU_RUNBOOKS_POLICY cannot be read", "the policy file cannot be read"),
    (not_text, "not UTF-8: byte 0xff", "errors in line 8: the file"),
    (too_large, "larger than 256 KiB", "errors in line 1: the file"),
    (emptied, "it is empty", "errors in line 1: the file"),
    (endless, "write a duration of at most 365d", "errors in line 8: probation"),
]


@pytest.mark.parametrize(("spoil", "problem", "where"), BAD, ids=lambda each: getattr(each, "__name__", ""))
def test_bad_file_changes_nothing_and_is_told_once(spoil, problem, where, role, file, caplog):
    before = role.policy
    spoil(file)
    for _ in range(10):
        role.look()
    assert role.policy is before
    assert budget(role) == 3
    assert problem in role.problem
    assert where in role.problem_at
    (line,) = said(caplog)
    assert line.startswith(f"policy {before.digest} stays, the file does not count: ")
    assert problem in line


def test_error_of_ours_keeps_the_policy_and_is_logged(role, file, caplog, monkeypatch):
    def fail(content: bytes) -> None:
        raise OverflowError("days=9999999999; must have magnitude <= 999999999")

    before = role.policy
    monkeypatch.setattr(policy_file, "load_policy", fail)
    file.write_text(OTHER)
    for _ in range(10):
        role.look()
    assert role.policy is before
    assert role.problem_at == "the policy file does not count, reading it failed: see the log"
    traceback, complaint = said(caplog)
    assert traceback == "the policy file could not be read"
    assert "reading it failed, which is a bug: OverflowError: days=9999999999" in complaint
    monkeypatch.undo()
    file.write_text(BROKEN)
    settle(role)
    assert "max_unavailable" in role.problem


def test_health_tells_no_word_of_the_file(role, file):
    file.write_text(SMALLEST.replace("enforce", "very-secret"))
    settle(role)
    assert "very-secret" in role.problem
    assert role.problem_at == "the policy file does not count, errors in line 1: mode"


def test_health_names_a_few_places(role, file):
    file.write_text(SMALLEST + "".join(f"field{number}: 1\n" for number in range(8)))
    settle(role)
    assert role.problem_at.endswith("line 12: field4; and 3 more")


def test_problem_is_repeated_at_intervals_and_ends(role, file, clock, caplog):
    caplog.set_level(logging.INFO)
    broken(file)
    settle(role)
    clock.now += REMINDER - 1
    role.look()
    assert len(said(caplog)) == 1
    clock.now += 1
    role.look()
    role.look()
    assert len(said(caplog)) == 2
    file.write_text(SMALLEST)
    settle(role)
    assert (role.problem, role.problem_at) == ("", "")
    assert said(caplog)[2:] == [
        "the policy file can be used again, and says what counted meanwhile: " + load_policy(SMALLEST).digest
    ]
    clock.now += 10 * REMINDER
    role.look()
    assert len(said(caplog)) == 3


def test_another_problem_is_told_at_once(role, file, caplog):
    broken(file)
    settle(role)
    vanished(file)
    settle(role)
    first, second = said(caplog)
    assert "max_unavailable" in first
    assert "cannot be read" in second


def test_other_layout_is_no_other_policy(role, file, caplog):
    caplog.set_level(logging.INFO)
    file.write_text(f"# reviewed\n{SMALLEST}")
    settle(role)
    assert (said(caplog), role.problem) == ([], "")


@pytest.mark.parametrize("spoil", [broken, not_text, too_large, emptied, endless])
def test_role_does_not_start_with_a_bad_file(spoil, file):
    spoil(file)
    with pytest.raises(PolicyError):
        PolicyFile(Settings(policy=file))


@pytest.mark.parametrize("spoil", [vanished, unreadable])
def test_role_does_not_start_without_a_file(spoil, file):
    spoil(file)
    with pytest.raises(OSError, match="the policy file of GPU_RUNBOOKS_POLICY cannot be read"):
        PolicyFile(Settings(policy=file))


async def test_watch_takes_a_changed_file_and_ends(role, file, monkeypatch):
    monkeypatch.setattr(policy_file, "INTERVAL", 0.01)
    monkeypatch.setattr(policy_file, "SETTLES", 0.01)
    stop = asyncio.Event()
    watching = asyncio.create_task(role.watch(stop))
    (file.parent / "new").write_text(OTHER)
    (file.parent / "new").replace(file)
    async with asyncio.timeout(20):
        while budget(role) != 1:
            await asyncio.sleep(0.01)
    stop.set()
    async with asyncio.timeout(20):
        await watching
