"""A sample of the mutated lines; `make fuzz` runs a million."""

from gpu_runbooks.activities.kernel_log import Parser, parse
from testbed.fuzz_kernel_log import run


def test_no_mutated_line_raises_or_tells_what_it_must_not():
    outcome = run(20_000)
    assert outcome.lines == 20_000
    assert outcome.events > 1_000  # many are still what they were


def test_text_with_half_characters_is_read_as_well():
    (event,) = parse(["NVRM: Xid (PCI:0000:05:00): 79, \ud800 \udcff demo"])
    assert event.code == "79"
    assert event.text.isascii()


def test_what_is_remembered_is_bounded():
    parser = Parser()
    for number in range(9_000):
        address = f"{number:08x}:05:00"
        parser.feed(f"NVRM: GPU at PCI:{address}: GPU-11112222-3333-4444-5555-666677778888")
        parser.feed(f"nvidia-nvswitch2: SXid (PCI:{address}): 20034, Fatal, Link 09")
        parser.feed(f"NVRM: Xid (PCI:{address}): 79, demo")
        parser.feed(f"NVRM: The NVIDIA GPU {address}.0")
    remembered = (
        parser._uuids,
        parser._lost._moments,
        parser._switches._moments,
        parser._told._records,
        parser._probes._named,
    )
    assert max(map(len, remembered)) <= 16_384
