"""Stands in for `nvidia-smi --gpu-reset [-i UUID,...]`: acts on the state file that NVML's stand-in reads.

Exit codes are those that nvidia-smi is known for: 255 where a GPU is in use, 3 not supported, 15 GPU lost.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from testbed.gpus import (
    STATE_VARIABLE,
    GpuState,
    NodeGpus,
    Presence,
    ResetAnswer,
    locked,
    read_state,
    write_state,
)

AMPERE = 7


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="nvidia-smi")
    parser.add_argument("-r", "--gpu-reset", action="store_true", required=True)
    parser.add_argument("-i", "--id", help="UUIDs of the GPUs, with commas; all where none is named")
    asked = parser.parse_args(arguments)
    path = Path(os.environ[STATE_VARIABLE])
    with locked(path):
        before = read_state(path)
        answer = before.reset
        later = ResetAnswer.DONE if answer == ResetAnswer.BUSY_ONCE else answer
        write_state(path, replace(before, reset=later, resets=before.resets + 1))
    if answer == ResetAnswer.HANG:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while read_state(path).reset == ResetAnswer.HANG:
            time.sleep(0.05)
        return 1
    while answer == ResetAnswer.SLOW:
        time.sleep(0.05)
        answer = read_state(path).reset
    with locked(path):
        return _reset(path, read_state(path), answer, asked.id.split(",") if asked.id else None)


def _reset(path: Path, state: NodeGpus, answer: ResetAnswer, uuids: Sequence[str] | None) -> int:
    present = [gpu for gpu in state.gpus if gpu.presence != Presence.MISSING]
    named = [gpu for gpu in present if uuids is None or gpu.uuid in uuids]
    if not named:
        print("No devices were found")
        return 6
    if refusal := _refusal(answer, named, [gpu for gpu in present if gpu not in named]):
        lines, exit_code = refusal
        print("\n".join(lines))
        return exit_code
    if answer != ResetAnswer.NOTHING:
        gpus = tuple(_after(gpu, answer) if gpu in named else gpu for gpu in state.gpus)
        write_state(path, replace(state, gpus=gpus))
    for gpu in named:
        print(f"GPU {gpu.pci_address} was successfully reset.")
    print("All done.")
    return 0


def _refusal(
    answer: ResetAnswer, named: Sequence[GpuState], others: Sequence[GpuState]
) -> tuple[list[str], int] | None:
    """Lines and exit code, where these GPUs are not reset."""
    busy_anyway = answer in {ResetAnswer.BUSY, ResetAnswer.BUSY_ONCE}
    busy = [gpu for gpu in named if busy_anyway or gpu.pids or gpu.graphics_pids or gpu.persistence == 1]
    if busy:
        told = [f"  GPU {gpu.pci_address}: In use by another client" for gpu in busy]
        return ["The following GPUs could not be reset:", *told], 255
    if others and (answer == ResetAnswer.NEEDS_PEERS or any(map(_needs_peers, named))):
        missing = [f"  GPU {gpu.pci_address}" for gpu in others]
        return ["These GPUs have NVLink peers that must be reset in the same command:", *missing], 255
    if answer == ResetAnswer.UNSUPPORTED:
        return [f"Resetting GPU {named[0].pci_address} is not supported."], 3
    if answer == ResetAnswer.LOST:
        return [f"Unable to determine the device handle for GPU {named[0].pci_address}: GPU is lost."], 15
    return None


def _needs_peers(gpu: GpuState) -> bool:
    return isinstance(gpu.architecture, int) and gpu.architecture < AMPERE and bool(gpu.nvlinks)


def _after(gpu: GpuState, answer: ResetAnswer) -> GpuState:
    """A reset also ends all MIG instances."""
    if answer == ResetAnswer.VANISH:
        return replace(gpu, presence=Presence.MISSING)
    return replace(
        gpu,
        presence=Presence.PRESENT,
        recovery_action=0,
        ecc_uncorrected=0,
        remap_pending=0,
        retirement_pending=0,
        instances=(),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
