"""What nvidia-smi answers, and that nobody waits for one that does not."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from gpu_runbooks.workers.node_agent.nvidia_smi import Outcome, ResetTool, classify
from gpu_runbooks.workers.node_agent.tool import ToolAnswer

IN_USE = """The following GPUs could not be reset:
  GPU 00000000:53:00.0: In use by another client

1 device is currently being used by one or more other processes (e.g. Fabric Manager, CUDA application)."""
SUCCESS = "GPU 00000000:53:00.0 was successfully reset.\nAll done."


@pytest.mark.parametrize(
    ("exit_code", "output", "outcome"),
    [
        (0, SUCCESS, Outcome.DONE),
        (0, "", Outcome.DONE),
        (255, IN_USE, Outcome.BUSY),
        (0, "GPU 00000000:53:00.0 is currently in use by another process.", Outcome.BUSY),
        (0, SUCCESS + "\n" + IN_USE, Outcome.BUSY),
        (3, "Resetting GPU 00000000:53:00.0 is not supported.", Outcome.UNSUPPORTED),
        (3, "", Outcome.UNSUPPORTED),
        (15, "", Outcome.LOST),
        (
            255,
            "Unable to determine the device handle for GPU 0000:53:00.0: GPU is lost. Reboot the system.",
            Outcome.LOST,
        ),
        (6, "No devices were found", Outcome.LOST),
        (255, "Unknown Error", Outcome.UNKNOWN),
        (127, "nvidia-smi cannot be started", Outcome.UNKNOWN),
        (-9, "", Outcome.UNKNOWN),
        (None, SUCCESS, Outcome.UNRESPONSIVE),
    ],
)
def test_the_text_beats_the_exit_code_and_silence_beats_both(exit_code, output, outcome):
    assert classify(ToolAnswer(exit_code, output)) is outcome


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
    assert classify(answer) is Outcome.UNKNOWN
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
