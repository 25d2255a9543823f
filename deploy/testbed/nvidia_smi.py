"""Stands in for `nvidia-smi --gpu-reset [-i UUID]`: acts on the state file that NVML's stand-in reads.

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
    read_state,
    write_state,
)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="nvidia-smi")
    parser.add_argument("-r", "--gpu-reset", action="store_true", required=True)
    parser.add_argument("-i", "--id", help="UUID of the GPU; all where none is named")
    asked = parser.parse_args(arguments)
    path = Path(os.environ[STATE_VARIABLE])
    state = read_state(path)
    state = replace(state, resets=state.resets + 1)
    write_state(path, state)
    named = [gpu for gpu in state.gpus if asked.id in {None, gpu.uuid} and gpu.presence != Presence.MISSING]
    if not named:
        print("No devices were found")
        return 6
    if state.reset == ResetAnswer.HANG:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while read_state(path).reset == ResetAnswer.HANG:
            time.sleep(0.05)
        return 1
    return _reset(path, state, named)


def _reset(path: Path, state: NodeGpus, named: Sequence[GpuState]) -> int:
    busy_anyway = state.reset == ResetAnswer.BUSY
    if busy := [gpu for gpu in named if gpu.pids or gpu.graphics_pids or busy_anyway]:
        print("The following GPUs could not be reset:")
        for gpu in busy:
            print(f"  GPU {gpu.pci_address}: In use by another client")
        return 255
    for gpu in named:
        if state.reset == ResetAnswer.UNSUPPORTED:
            print(f"Resetting GPU {gpu.pci_address} is not supported.")
            return 3
        if state.reset == ResetAnswer.LOST:
            print(f"Unable to determine the device handle for GPU {gpu.pci_address}: GPU is lost.")
            return 15
    if state.reset != ResetAnswer.NOTHING:
        gpus = tuple(_after(gpu, state.reset) if gpu in named else gpu for gpu in state.gpus)
        write_state(path, replace(state, gpus=gpus))
    for gpu in named:
        print(f"GPU {gpu.pci_address} was successfully reset.")
    print("All done.")
    return 0


def _after(gpu: GpuState, answer: ResetAnswer) -> GpuState:
    if answer == ResetAnswer.VANISH:
        return replace(gpu, presence=Presence.MISSING)
    return replace(gpu, presence=Presence.PRESENT, recovery_action=0, ecc_uncorrected=0, remap_pending=0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
