"""What nvidia-smi answers, and that nobody waits for one that does not."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from gpu_runbooks.activities.model.node_task import ResetOutcome
from gpu_runbooks.workers.node_agent.nvidia_smi import ResetTool, classify, reset_some
from gpu_runbooks.workers.node_agent.tool import ToolAnswer

SUCCESS = "GPU 00000000:53:00.0 was successfully reset.\nAll done."
IN_USE = """The following GPUs could not be reset:
  GPU 00000000:53:00.0: In use by another client

1 device is currently being used by one or more other processes (e.g. Fabric Manager, CUDA application)."""
PEERS = """The following GPUs are connected by NVLink and must be reset in the same command:
  GPU 00000000:64:00.0"""
LOST = "Unable to determine the device handle for GPU 0000:53:00.0: GPU is lost. Reboot."
DAMAGED = "WARNING: infoROM is corrupted at gpu 0000:53:00.0"


@pytest.mark.parametrize(
    ("exit_code", "output", "outcome"),
    [
        (0, SUCCESS, ResetOutcome.DONE),
        (0, "", ResetOutcome.DONE),
        (0, "All done.", ResetOutcome.DONE),
        (255, IN_USE, ResetOutcome.BUSY),
        (0, "GPU 00000000:53:00.0 is currently in use by another process.", ResetOutcome.BUSY),
        (3, "Resetting GPU 00000000:53:00.0 is not supported.", ResetOutcome.UNSUPPORTED),
        (3, "", ResetOutcome.UNSUPPORTED),
        (
            255,
            "GPU Reset couldn't run because GPU 0 is the primary GPU.",
            ResetOutcome.UNSUPPORTED,
        ),
        (255, PEERS, ResetOutcome.NEEDS_PEERS),
        (1, "All NVLink peers of GPU 0 have to be included in the reset.", ResetOutcome.NEEDS_PEERS),
        (
            255,
            "GPU 0 is linked via NVLink to GPUs that are not in the list of this reset.",
            ResetOutcome.NEEDS_PEERS,
        ),
        (255, "Not all NVLink-connected GPUs were given.", ResetOutcome.NEEDS_PEERS),
        (255, "The reset must include GPU 00000000:64:00.0.", ResetOutcome.NEEDS_PEERS),
        (255, "GPU reset is not available on this GPU.", ResetOutcome.UNSUPPORTED),
        (255, "Resetting GPU 0 is not permitted in a virtual machine.", ResetOutcome.UNSUPPORTED),
        (30, "", ResetOutcome.UNSUPPORTED),
        (19, "", ResetOutcome.BUSY),
        (0, "GPU 00000000:53:00.0 was reset successfully.\nAll done.", ResetOutcome.DONE),
        (0, f"GPU 00000000:52:00.0 was successfully reset.\n{SUCCESS}", ResetOutcome.DONE),
        (255, "GPU 00000000:53:00.0 disappeared from the PCI bus.", ResetOutcome.LOST),
        (255, "GPU 00000000:53:00.0 is inaccessible.", ResetOutcome.LOST),
        (15, "", ResetOutcome.LOST),
        (255, LOST, ResetOutcome.LOST),
        (255, "GPU 00000000:53:00.0 has fallen off the bus.", ResetOutcome.LOST),
        (6, "No devices were found", ResetOutcome.LOST),
        (None, SUCCESS, ResetOutcome.UNRESPONSIVE),
        (None, IN_USE, ResetOutcome.UNRESPONSIVE),
    ],
)
def test_the_text_beats_the_exit_code_and_silence_beats_both(exit_code, output, outcome):
    assert classify(ToolAnswer(exit_code, output)) is outcome


@pytest.mark.parametrize("exit_code", [0, 1, 3, 15, 255])
@pytest.mark.parametrize(
    "output",
    [
        "Unable to reset this GPU because it's being used by some other process.\nTerminating early.",
        "Please first kill all processes using this GPU, and then try to reset the GPU again.",
        "GPU 00000000:53:00.0: Device or resource busy",
        "Could not reset GPU 0: the GPU is still busy",
        "GPU 0 is being held open by pid 812",
        "GPU 0 is used by another application",
        "GPU 00000000:53:00.0: In-Use By Another Client",
        "One or more processes are using GPU 0.",
        "Another client is using this GPU.",
        "Processes are still running on GPU 0",
        "GPU 0 has active clients.",
        "GPU 0 has 2 open handles",
        "nvidia-persistenced keeps GPU 0 open",
        "GPU 0 is locked by another client",
        "GPU 0 wird von einem anderen Prozess verwendet.",
        "Le GPU 0 est en cours d'utilisation par un autre processus.",
        "La GPU 0 está siendo utilizada por otro proceso.",
        "GPU 00000000:53:00.0: 正在被另一个客户端使用",
        "GPU 0 は別のプロセスで使用されています。",
    ],
)
def test_busy_is_busy_in_any_words(exit_code, output):
    assert classify(ToolAnswer(exit_code, output)) is ResetOutcome.BUSY


@pytest.mark.parametrize(
    ("output", "outcome"),
    [
        (f"{SUCCESS}\n{IN_USE}", ResetOutcome.BUSY),
        (f"{SUCCESS}\n{LOST}", ResetOutcome.LOST),
        (f"{IN_USE}\n{LOST}", ResetOutcome.LOST),
        (f"{IN_USE}\n{PEERS}", ResetOutcome.NEEDS_PEERS),
        (f"{IN_USE}\nResetting GPU 1 is not supported.", ResetOutcome.UNSUPPORTED),
        (f"{SUCCESS}\nGPU 1: Unknown Error", ResetOutcome.UNKNOWN),
    ],
)
@pytest.mark.parametrize("exit_code", [0, 255])
def test_of_several_gpus_the_one_that_fared_worst_decides(exit_code, output, outcome):
    assert classify(ToolAnswer(exit_code, output)) is outcome


@pytest.mark.parametrize(
    ("exit_code", "output"),
    [
        (255, ""),
        (255, "Unknown Error"),
        (255, SUCCESS),
        (0, "Unable to reset GPU 0."),
        (0, "GPU 0 was not successfully reset."),
        (4, "Insufficient Permissions"),
        (9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
        (9, ""),
        (10, "Interrupt Request Issue"),
        (10, ""),
        (14, DAMAGED),
        (14, ""),
        (127, "nvidia-smi cannot be started"),
        (-9, ""),
        (-11, SUCCESS),
        (255, "The GPU is not in use but could not be reset."),
        (255, "No other processes are using the GPU, yet it could not be reset."),
        (255, "GPU 0 has no running processes, yet it could not be reset."),
        (255, "No processes are running. The reset failed."),
        (0, "GPU 0 could not be reset successfully."),
        (255, "Insufficient permissions to reset the GPU."),
    ],
)
def test_what_is_not_clear_is_unknown(exit_code, output):
    assert classify(ToolAnswer(exit_code, output)) is ResetOutcome.UNKNOWN


def test_a_damaged_inforom_is_a_warning_and_does_not_undo_the_reset():
    assert classify(ToolAnswer(14, f"{DAMAGED}\n{SUCCESS}")) is ResetOutcome.DONE
    unsupported = "Warning: persistence mode is not supported on this device."
    assert classify(ToolAnswer(0, f"{unsupported}\n{SUCCESS}")) is ResetOutcome.DONE


def test_a_reset_of_some_is_seen_among_other_words():
    assert reset_some(ToolAnswer(255, f"{SUCCESS}\n{IN_USE}"))
    assert not reset_some(ToolAnswer(255, IN_USE))
    assert not reset_some(ToolAnswer(255, "GPU 0 could not be successfully reset"))


def shell(script):
    return ResetTool(["sh", "-c", script, "nvidia-smi"])


async def test_the_gpus_are_named_in_one_command():
    assert await shell('echo "$@"').reset(["GPU-a", "GPU-b"], 10) == ToolAnswer(
        0, "--gpu-reset -i GPU-a,GPU-b"
    )


async def test_all_gpus_need_no_name():
    assert await shell('echo "$@"; exit 3').reset([], 10) == ToolAnswer(3, "--gpu-reset")


async def test_a_tool_that_is_not_there_is_an_answer_too():
    answer = await ResetTool(["/nowhere/nvidia-smi"]).reset([], 10)
    assert classify(answer) is ResetOutcome.UNKNOWN
    assert "/nowhere/nvidia-smi" in answer.output


async def test_one_that_ignores_the_polite_signal_is_killed_with_its_children():
    answer = await shell("trap '' TERM; sleep 3600 & echo $! $$; sleep 3600").reset([], 0.5)
    assert answer.exit_code is None
    pids = [int(pid) for pid in answer.output.split()]
    assert len(pids) == 2
    async with asyncio.timeout(10):
        while any(map(is_running, pids)):
            await asyncio.sleep(0.02)


async def test_a_survivor_that_holds_the_output_open_is_not_waited_for(tmp_path):
    pid_file = tmp_path / "pid"
    # The grandchild leaves the process group and keeps stdout: a reader of a pipe would wait an hour.
    escape = f"setsid sh -c 'echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; exec sleep 3600' &"
    answer = await shell(f"{escape} while [ ! -e {pid_file} ]; do sleep 0.05; done; sleep 3600").reset([], 2)
    survivor = int(pid_file.read_text())
    try:
        assert answer.exit_code is None
        assert is_running(survivor)
    finally:
        os.kill(survivor, signal.SIGKILL)


async def test_while_one_cannot_be_killed_no_second_one_is_started(tmp_path, monkeypatch):
    starts = tmp_path / "starts"
    tool = shell(f"echo started >> {starts}; echo $$; sleep 3600")
    with monkeypatch.context() as patched:
        patched.setattr(os, "killpg", lambda _group, _signal: None)  # as a process in the kernel's hands
        first = await tool.reset([], 0.5)
        second = await tool.reset([], 0.5)
    os.killpg(int(first.output), signal.SIGKILL)
    tool._running.wait()
    assert first.exit_code is second.exit_code is None
    assert "has not ended" in second.output
    assert starts.read_text().splitlines() == ["started"]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
