"""How fast the parser reads a kernel log, on one core: a node's log as it is, and its GPU lines alone."""

import random
import time

from gpu_runbooks.activities.kernel_log import Parser

LINES = 400_000
"""Of the whole log."""

GPU_LINES = LINES // 100

ROUNDS = 3
"""The best one counts: others on the machine only make it slower."""

SEED = 20_260_301

NOISE = (
    "usb {n}-1: new high-speed USB device number {n} using xhci_hcd",
    "IPv6: ADDRCONF(NETDEV_CHANGE): veth{n:x}: link becomes ready",
    "cni0: port {n}(veth{n:x}) entered forwarding state",
    "EXT4-fs (nvme{n}n1): mounted filesystem with ordered data mode. Quota mode: none.",
    "systemd-journald[{n}]: Time spent on flushing to /var/log/journal is {n}us for {n} entries",
    "Memory cgroup out of memory: Killed process {n} (python3) total-vm:{n}kB, anon-rss:{n}kB, UID:0",
    "pcieport 0000:00:1e.0: AER: Corrected error received: id=00{n:x}",
    "overlayfs: fs on '/var/lib/containerd/snapshots/{n}/fs' does not support file handles",
    "ena 0000:00:06.0 ens6: Link is up, default path {n}",
    'audit: type=1400 audit({n}.000:{n}): apparmor="ALLOWED" operation="open" pid={n}',
)
GPU = (
    "NVRM: Xid (PCI:0000:{b:02x}:00): 31, pid={n}, name=sampler, Ch 000000{b:02x}, MMU fault demo {n}",
    "NVRM: Xid (PCI:0000:{b:02x}:00 GPU-I:07): 13, pid={n}, name=infer, demo on (GPC 2, TPC 1, SM 0) {n}",
    "NVRM: Xid (PCI:0000:{b:02x}:00): 74, NVLink demo {n} on link 5(0x{n:x}, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
    "NVRM: Xid (PCI:0000:{b:02x}:00): 45, pid={n}, name=infer, Ch 000000{b:02x} caused by previous Xid 94",
    "NVRM: Xid (PCI:0000:{b:02x}:00): 149, NETIR_DEMO Fatal XC0 i0 Link 03 (0x{n:08x} 0x00000001)",
    "NVRM: Xid (PCI:0000:{b:02x}:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Demo {n})",
    "nvidia-nvswitch2: SXid (PCI:0000:{b:02x}:00.0): 20034, Fatal, Link 09 demo fault {n}",
    "NVRM: GPU 0000:{b:02x}:00.0: GPU has fallen off the bus.",
    "NVRM: Xid (PCI:0000:{b:02x}:00): 79, pid='<unknown>', name=<unknown>, demo {n}",
    "NVRM: loading demo {n} of the driver",
)


def log_lines(count: int, *, gpu_share: float) -> list[bytes]:
    """Raw records of `/dev/kmsg`, the same ones each time, of which a share is of GPUs."""
    chance = random.Random(SEED)  # noqa: S311 - the same lines each time
    lines = []
    for sequence in range(count):
        shapes = GPU if chance.random() < gpu_share else NOISE
        text = chance.choice(shapes).format(n=chance.randrange(1, 100_000), b=chance.randrange(256))
        lines.append(f"6,{sequence},{sequence * 1000},-;{text}".encode())
    return lines


def measure() -> dict[str, float]:
    """Lines a second."""
    return {
        "parse_lines_per_second": _best(log_lines(LINES, gpu_share=0.01)),
        "parse_gpu_lines_per_second": _best(log_lines(GPU_LINES, gpu_share=1.0)),
    }


def _best(lines: list[bytes]) -> float:
    return max(_lines_per_second(lines) for _ in range(ROUNDS))


def _lines_per_second(lines: list[bytes]) -> float:
    feed = Parser(boot_id="boot").feed
    begin = time.process_time()  # of this core, whoever else is at work on the machine
    events = sum(len(feed(line)) for line in lines)
    seconds = time.process_time() - begin
    if not events:
        raise AssertionError("the parser found nothing in a log that has GPU lines")
    return len(lines) / seconds


if __name__ == "__main__":
    for name, figure in measure().items():
        print(f"{name} {figure:,.0f}")
