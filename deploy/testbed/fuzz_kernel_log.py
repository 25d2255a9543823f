"""Mutated lines for the parser of the kernel log: `python -m testbed.fuzz_kernel_log --lines 1000000`.

Whatever a line is, the parser raises nothing, and what it tells is bounded, printable and of the right form.
The same seed gives the same lines, so that a failure can be seen again.
"""

import argparse
import random
import re
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from gpu_runbooks.activities.kernel_log import Event, Kind, Parser, fault_of
from testbed.progress import Progress

LINES = 1_000_000
SEED = 6
NEW_PARSER_EVERY = 10_000
"""Lines. A parser that lives long has more to confuse; a new one has nothing."""

LONGEST_INSERT = 40_000
"""Bytes. Rare, or the run would be about these alone."""

MOMENT = datetime(2026, 3, 2, tzinfo=UTC)

TEXTS = (
    "NVRM: Xid (PCI:0000:4c:00): 31, pid=8812, name=sampler, Ch 00000011, MMU fault demo",
    "NVRM: Xid (PCI:0000:4c:00 GPU-I:07 GPU-CI:00): 94, pid=91, name=a, Contained: demo. RST: No, D-RST: Yes",
    "NVRM: Xid (0000:4c:00): 13, pid='<unknown>', name=<unknown>, demo on (GPC 2, TPC 1, SM 0)",
    "NVRM: Xid (PCI:00000000:4C:00.0): 79, GPU has fallen off the bus.",
    "NVRM: Xid (PCI:0000:4c:00): 45, pid=91, name=my, odd: name, Ch 00000002 caused by previous Xid 94",
    "NVRM: Xid (PCI:0000:4c:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
    "NVRM: Xid (PCI:0000:4c:00): 149, NETIR_DEMO Fatal XC0 i0 Link -1 (0x00000abc 0x00000001 0x00000000)",
    "NVRM: Xid (PCI:0000:4c:00): 74, NVLink demo on link 5(0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
    "NVRM: GPU at PCI:0000:4c:00: GPU-11112222-3333-4444-5555-666677778888",
    "NVRM: GPU 0000:4c:00.0: GPU has fallen off the bus.",
    "NVRM: GPU 0000:4c:00.0: RmInitAdapter failed! (0x62:0x40:2192)",
    "NVRM: The NVIDIA GPU 0000:b3:00.0",
    "NVRM: (PCI ID: 10de:26b9) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
    "nvidia-nvswitch2: SXid (PCI:0000:87:00.0): 20034, Fatal, Link 09 demo fault",
    "nvidia-nvswitch2: SXid (PCI:0000:87:00.0): 20034, Severity 1 Engine instance 09 Sub-engine instance 00",
    "nvidia-nvswitch2: SXid (PCI:0000:87:00.0): 20034, Data {0x00000000, 0x00000001}",
    "nvidia-peermem demo:127 ERROR detected invalid context, skipping",
    "infiniband rdmap16s27: Admin queue is closed",
    "efa 0000:10:1b.0 rdmap16s27: Reset indication didn't turn on",
    "ena 0000:00:06.0 ens6: Keep alive watchdog timeout.",
    "pt_main[25]: segfault at 7f79 ip 00007f7c sp 00007f7c error 4 in libnccl.so.2[7f7c+d3d3]",
    "nvidia_rm_log: 412 callbacks suppressed",
    "printk: python3: 55 output lines suppressed due to ratelimiting",
    "systemd-journald[77]: Missed 12 kernel messages",
    "gpu-runbooks: reset phase=before incident=node/prod/a gpu=GPU-3f pci=0000:53:00",
    "usb 1-1: new device",
)
PREFIXES = (
    "",
    "3,4611,4071000000,-;",
    "13,4612,4071000001,-,caller=T77;",
    "[ 4071.000000] ",
    "[ 4071.000000][ T77] ",
    "[Sun Mar  1 10:00:00 2026] ",
    "kern  :err   : [ 4071.000000] ",
    "<3>[ 4071.000000] ",
    "2026-03-01T10:00:00,211323+00:00 ",
    "Mar  1 10:00:00 gpu-a1 kernel: ",
    "Mar  1 10:00:00 gpu-a1 kernel: [ 4071.000000] ",
    "2026-03-01T10:00:00.211323+00:00 gpu-a1 kernel: ",
    '<3>1 2026-03-01T10:00:00.211Z gpu-a1 kernel - - [a b="c"] ',
    '{"_TRANSPORT": "kernel", "_BOOT_ID": "b00t", "__REALTIME_TIMESTAMP": "1772359200211323", "MESSAGE": "',
    '{"_TRANSPORT": "kernel", "MESSAGE": [78, 86, 82, 77, 58, 32], "_SOURCE_MONOTONIC_TIMESTAMP": "1',
    "               ",
    " SUBSYSTEM=pci",
)
WORDS = b"NVRM: |Xid (|SXid |kernel: |name=|pid=|PCI:|GPU-I:|Link |XC1|-1|\\x0a|\\x|\x1b]0;owned\x07".split(
    b"|"
)
BROKEN = (
    b"\xff\xfe",
    b"\xc3",
    b"\xe2\x82",
    b"\xed\xa0\x80",
    b"\xf4\x90",
    b"\x85",
    b"\xe2\x80\xa8",
    b"\xd9\xa0",
)
"""No UTF-8, or a line end or a digit only to Unicode."""

NUMBERS = (b"9" * 25, b"9" * 5000, b"0x" + b"f" * 40, b"0" * 300)
SIGNS = tuple(bytes((each,)) for each in b"\x00\n\r\t()[]<>{}\"';,:. ")
TOKENS = (*WORDS, *BROKEN, *NUMBERS, *SIGNS)

_CODE = re.compile(r"[a-z0-9-]{1,40}")
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}")


class BrokenPromiseError(AssertionError):
    """The parser told something that it must not."""


@dataclass(frozen=True)
class Outcome:
    lines: int
    events: int
    slowest: float
    """Seconds of the processor for one line."""


def mutated_lines(count: int, seed: int = SEED) -> Iterator[bytes | str]:
    """Lines that have been something once, most as bytes and some as text with half characters."""
    chance = random.Random(seed)  # noqa: S311 - the same lines each time
    for _ in range(count):
        line = bytearray(_whole(chance))
        for _ in range(chance.choice((0, 1, 1, 2, 3, 8))):
            _mutate(line, chance)
        if chance.random() < 0.1:
            yield bytes(line).decode("utf-8", "surrogateescape")
        else:
            yield bytes(line)


def _whole(chance: random.Random) -> bytes:
    line = chance.choice(PREFIXES) + chance.choice(TEXTS)
    if line.startswith("{"):
        line += '"}'
    line = line.replace("4611", str(chance.randrange(10_000))).replace("4071", str(chance.randrange(10_000)))
    return line.replace("4c", f"{chance.randrange(256):02x}").encode()


def _mutate(line: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(line) + 1)
    to = min(len(line), at + chance.randrange(1, 20))
    kind = chance.randrange(8)
    if kind == 0 and at < len(line):
        line[at] ^= 1 << chance.randrange(8)
    elif kind == 1:
        del line[at:to]
    elif kind == 2:
        del line[at:]
    elif kind == 3:
        line[at:at] = chance.choice(TOKENS)
    elif kind == 4:
        line[at:to] = chance.choice(TOKENS)
    elif kind == 5:
        line[at:] = _whole(chance)[chance.randrange(40) :]
    elif kind == 6:
        line[at:to] = line[at:to] * chance.randrange(2, 30)
    elif chance.random() < 0.02:
        line[at:at] = chance.choice([*WORDS, *SIGNS]) * (LONGEST_INSERT // 16)
    else:
        line[at:at] = bytes((chance.randrange(256),))


def run(lines: int, seed: int = SEED) -> Outcome:
    """Feed mutated lines. Raises what the parser raises, or `BrokenPromiseError`, with the line beside it."""
    parser = Parser()
    events, slowest = 0, 0.0
    for number, line in enumerate(mutated_lines(lines, seed)):
        if number % NEW_PARSER_EVERY == 0:
            parser = Parser(boot_id="boot", boot_time=MOMENT if number % 20_000 else None, near=MOMENT)
        begin = time.process_time()
        try:
            told = parser.feed(line)
            for event in told:
                check(event)
        except Exception as error:
            error.add_note(f"line {number} of seed {seed}: {line[:2000]!r}")
            raise
        slowest = max(slowest, time.process_time() - begin)
        events += len(told)
    return Outcome(lines, events, slowest)


def check(event: Event) -> None:
    """Raise `BrokenPromiseError` for an event that nobody should have to handle."""
    fault = fault_of(event, seen=MOMENT, reporter="fuzz")
    finding = event.finding
    promises = {
        "a code": _CODE.fullmatch(event.code),
        "an address": event.pci is None or event.kind is Kind.MARKER or _PCI.fullmatch(event.pci),
        "text of one printable line": len(event.text) <= 512
        and f"{event.text} ".isprintable()
        and event.text.isascii(),
        "a short process": len(finding.process or "") <= 64,
        "few registers": len(finding.registers) <= 128,
        "an aware time": event.time is None or event.time.utcoffset() is not None,
        "an identity": 0 < len(event.identity) <= 100,
        "a short summary": fault is None or (len(fault.summary) <= 300 and fault.summary.isascii()),
    }
    broken = [promise for promise, kept in promises.items() if not kept]
    if broken:
        raise BrokenPromiseError(f"an event lacks {', '.join(broken)}: {event}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m testbed.fuzz_kernel_log", description=__doc__)
    parser.add_argument("--lines", type=int, default=LINES, help=f"how many (default: {LINES})")
    parser.add_argument("--seed", type=int, default=SEED, help=f"which ones (default: {SEED})")
    asked = parser.parse_args()
    with Progress().step(f"{asked.lines} mutated lines of seed {asked.seed}"):
        outcome = run(asked.lines, asked.seed)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{outcome.events} events and no exception; the slowest line took {1000 * outcome.slowest:.1f} ms of "
        f"the processor; {memory:.0f} MiB of memory at most"
    )


if __name__ == "__main__":
    main()
