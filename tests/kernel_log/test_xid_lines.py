"""Each shape of an Xid line, and what it says."""

import pytest

from gpu_runbooks.activities.kernel_log import Kind, parse

HEAD = "NVRM: Xid (PCI:0000:4c:00): "


def only(*lines, **known):
    events = list(parse(lines, **known))
    assert len(events) == 1, events
    return events[0]


def finding(line):
    return only(line).finding


@pytest.mark.parametrize("said", ["", " ", ",", ", "])
def test_a_number_with_nothing_behind_it_counts(said):
    found = finding(f"{HEAD}79{said}")
    assert (found.kind, found.code, found.pci, found.text) == (Kind.XID, "79", "0000:4c:00", "")


@pytest.mark.parametrize("said", ["79x", "79.5", "79 pid=9", "1234567"])
def test_what_only_begins_like_a_number_does_not(said):
    assert list(parse([HEAD + said])) == []


@pytest.mark.parametrize(
    ("where", "pci", "gi", "ci"),
    [
        ("PCI:0000:4c:00", "0000:4c:00", None, None),
        ("0000:4c:00", "0000:4c:00", None, None),
        ("PCI:0000:4C:00", "0000:4c:00", None, None),
        ("PCI:0000:4c:00.0", "0000:4c:00", None, None),
        ("PCI:00000000:4C:00.0", "0000:4c:00", None, None),
        ("PCI:0001:00:00", "0001:00:00", None, None),
        ("PCI:10000:01:00", "10000:01:00", None, None),
        ("PCI:000a:dd:1f", "000a:dd:1f", None, None),
        ("PCI:0000:4c:00 GPU-I:07", "0000:4c:00", 7, None),
        ("PCI:0000:4c:00 GPU-I:07 GPU-CI:00", "0000:4c:00", 7, 0),
        ("0000:4C:00 GPU-I:13 GPU-CI:02", "0000:4c:00", 13, 2),
        ("PCI:0000:4c:00 something:new", "0000:4c:00", None, None),
    ],
)
def test_whatever_stands_in_the_parentheses_behind_an_address(where, pci, gi, ci):
    found = finding(f"NVRM: Xid ({where}): 94, pid=91, name=infer, Contained: demo")
    assert (found.kind, found.code, found.pci, found.gi, found.ci) == (Kind.XID, "94", pci, gi, ci)


@pytest.mark.parametrize(
    ("said", "pid", "process", "text"),
    [
        ("GPU link lost demo", None, None, "GPU link lost demo"),
        ("pid=8812, name=sampler, Ch 00000011, MMU demo", 8812, "sampler", "Ch 00000011, MMU demo"),
        ("pid='<unknown>', name=<unknown>, demo, more", None, None, "demo, more"),
        ("pid=<unknown>, name='<unknown>', demo", None, None, "demo"),
        ("pid=<n/a>, name=<unknown>, demo", None, None, "demo"),
        ("pid='4711', name=x, Ch 00000001", 4711, "x", "Ch 00000001"),
        ("pid=, name=x, Ch 00000001", None, None, "pid=, name=x, Ch 00000001"),
        ("pid=1122, GPU has fallen over", 1122, None, "GPU has fallen over"),
        ("pid=7, name=my, odd: name, Ch 0000000a", 7, "my, odd: name", "Ch 0000000a"),
        ('pid=7, name=it\'s "odd" (v2), Timeout after 6s', 7, 'it\'s "odd" (v2)', "Timeout after 6s"),
        ("pid=7, name=nvc:[driver], Timeout after 6s", 7, "nvc:[driver]", "Timeout after 6s"),
        ("pid=7, name=python3 -m a, Ch 1", 7, "python3 -m a", "Ch 1"),
        ("pid=7, name=trainer, words unheard of, more", 7, "trainer", "words unheard of, more"),
        ("pid=7, name=trainer", 7, "trainer", ""),
        ("pid=7, name=n\u00e4me\x1b[2J, Ch 1", 7, "n?me?[2J", "Ch 1"),
        ("", None, None, ""),
    ],
)
def test_process_and_text(said, pid, process, text):
    found = finding(f"{HEAD}43, {said}")
    assert (found.code, found.pid, found.process, found.text) == ("43", pid, process, text)


@pytest.mark.parametrize(
    ("said", "place", "sm"),
    [
        ("demo warp exception on (GPC 2, TPC 1, SM 0)", "GPC 2 TPC 1", 0),
        ("pid=5, name=a, Graphics demo on (GPC 7, TPC 12, SM 1): demo", "GPC 7 TPC 12", 1),
        ("demo on (GPC 0, TPC 1): demo", "GPC 0 TPC 1", None),
        ("pid=5, name=(GPC 9, TPC 9), Graphics demo on (GPC 2, TPC 1, SM 3)", "GPC 2 TPC 1", 3),
        ("Graphics Exception: demo 0x404490=0x80000001", "", None),
    ],
)
def test_the_place_of_a_13_is_gpc_and_tpc(said, place, sm):
    found = finding(f"{HEAD}13, {said}")
    assert (found.place, found.sm) == (place, sm)


def test_another_code_has_no_such_place():
    assert finding(f"{HEAD}31, demo GPC2 (GPC 2, TPC 1, SM 0)").place == ""


@pytest.mark.parametrize(
    ("code", "said", "cause"),
    [
        (45, "pid=91, name=infer, Ch 00000002 caused by previous Xid 94", 94),
        (45, "Ch 00000002 caused by previous Xid 149", 149),
        (45, "pid=91, name=infer,  caused by previous Xid 119\r", 119),
        (45, "pid=91, name=infer, Ch 00000002", None),
        (45, "Ch 00000002 caused by previous Xid 0", None),
        (45, "Ch 00000002 caused by previous Xid 94.", 94),
        (45, "pid=91, name=infer, Ch 00000002 caused by previous Xid 94. See the log, intr 00000000", 94),
        (45, "Ch 00000002 caused by previous Xid 94 or so", 94),
        (45, "Ch 00000002 caused by previous Xid 94, intr 00000000", 94),
        (45, "Ch 00000002 caused by previous Xid 1234567", None),
        (45, "Ch 00000002 caused by previous Xid 94.5", None),
        (45, "pid=91, name=caused by previous Xid 13, Ch 00000002", None),
        (45, "pid=91, name=a, Ch caused by previous Xid 13, Ch 00000002", None),
        (45, "pid=91, name=a, Ch caused by previous Xid 13, Ch 00000002 caused by previous Xid 94.", 94),
        (43, "Ch 00000002 caused by previous Xid 94", None),
    ],
)
def test_an_xid_45_may_name_its_cause(code, said, cause):
    found = finding(f"{HEAD}{code}, {said}")
    assert (found.code, found.caused_by) == (str(code), cause)


@pytest.mark.parametrize(
    ("said", "action"),
    [
        ("pid=91, name=infer, Uncontained: DRAM demo (0x1, 0x0). RST: Yes, D-RST: No", 1),
        ("Uncontained: demo (0x1,0x0). RST: Yes, D-RST: Yes", 1),
        ("pid=91, Contained: demo (0x9). RST: No, D-RST: Yes", 4),
        ("pid=91, Contained: demo (0x9). RST: No, D-RST: No", None),
        ("pid=91, Contained: demo", None),
    ],
)
@pytest.mark.parametrize("code", [94, 95])
def test_reset_flags_are_a_recovery_action(code, said, action):
    assert finding(f"{HEAD}{code}, {said}").recovery_action == action


@pytest.mark.parametrize(
    ("said", "before", "now"),
    [
        ("GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", 0, 4),
        ("GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", 0, 2),
        ("GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", 1, 0),
        ("pid=7, name=x, GPU recovery action changed from 0x0 (None) to 0x1F (Whatever Is New)", 0, 31),
        ("GPU recovery action changed from 0x0 to 0x3", 0, 3),
        ("GPU recovery action changed", None, None),
        ("GPU recovery action changed from 0x0 (None) to 0x123456789 (Too Long)", None, None),
    ],
)
def test_an_xid_154_says_what_the_driver_wants(said, before, now):
    found = finding(f"{HEAD}154, {said}")
    assert (found.previous_action, found.recovery_action) == (before, now)


@pytest.mark.parametrize(
    ("said", "link", "registers"),
    [
        ("NVLink demo on link 5(0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0xF)", 5, (1, 0, 0, 0, 0, 0, 15)),
        (
            "pid='<unknown>', name=<unknown>, NVLink demo on link 14 (0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
            14,
            (0, 0, 0x10000, 0, 0, 0, 0),
        ),
        ("NVLink demo on link 5(0x1, 0x0)", 5, ()),
        ("NVLink demo on link 2", 2, ()),
        ("NVLink demo", None, ()),
    ],
)
def test_an_xid_74_has_a_link_and_seven_registers(said, link, registers):
    found = finding(f"{HEAD}74, {said}")
    assert (found.link, found.registers) == (link, registers)
    assert found.place == ("" if link is None else f"link {link}")


@pytest.mark.parametrize(
    ("said", "unit", "grade", "cross", "injected", "link", "words"),
    [
        (
            "NETIR_DEMO Fatal XC0 i0 Link 03 (0x00000abc 0x00000001 0x00000000)",
            "NETIR_DEMO",
            "fatal",
            False,
            False,
            3,
            (0xABC, 1, 0),
        ),
        (
            "RLW_DEMO Nonfatal XC1 i1 Link -1 (0xdeadbeef)",
            "RLW_DEMO",
            "nonfatal",
            True,
            True,
            None,
            (0xDEADBEEF,),
        ),
        ("TLW_DEMO Non-fatal XC0 i0 Link 17 (0x1 0x2)", "TLW_DEMO", "nonfatal", False, False, 17, (1, 2)),
        ("MSE_DEMO Link Fatal XC0 i0 Link 00 (0x1)", "MSE_DEMO", "fatal", False, False, 0, (1,)),
        (
            "pid=7, name=torch, rank 3, RLW_DEMO Nonfatal XC1 i0 Link 11 (0x4)",
            "RLW_DEMO",
            "nonfatal",
            True,
            False,
            11,
            (4,),
        ),
    ],
)
@pytest.mark.parametrize("code", range(144, 151))
def test_nvlink5(code, said, unit, grade, cross, injected, link, words):
    found = finding(f"{HEAD}{code}, {said}")
    assert (found.unit, found.grade, found.link, found.registers) == (unit, grade, link, words)
    assert (found.cross_contained, found.injected) == (cross, injected)
    assert found.place == (unit if link is None else f"{unit} link {link}")


def test_an_nvlink5_line_of_a_shape_to_come_keeps_its_code():
    found = finding(f"{HEAD}145, demo of another shape")
    assert (found.code, found.unit, found.grade, found.link) == ("145", "", "", None)


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid error: xyz, invalid data",
        "NVRM: Xid (invalid): some error",
        "NVRM: Xid (invalid): 79, some error",
        "NVRM: Xid (PCI:0000:05:00): , pid=1",
        "NVRM: Xid (PCI:0000:05:00): abc, pid=1",
        "NVRM: Xid (PCI:0000:05:00): -79, pid=1",
        "NVRM: Xid (PCI:0000:05:00): 0, pid=1",
        "NVRM: Xid (PCI:0000:05:00): 79 GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:05:00): 7.9, demo",
        "NVRM: Xid (PCI:0000:05:00): 12345678, demo",
        "NVRM: Xid (PCI:0000:05:00) 79, demo",
        "NVRM: Xid (PCI:0000:05:00: 79, demo",
        "NVRM: Xid (PCI:00g0:05:00): 79, demo",
        "NVRM: Xid (PCI:0000:05): 79, demo",
        "NVRM: Xid (PCI:0000:05:00x): 79, demo",
        "NVRM: Xid (PCI:\u0660\u0660\u0660\u0660:05:00): 79, demo",
        "NVRM: Xid (PCI:0000:05:00): \u0667\u0669, demo",
        "NVRM:Xid (PCI:0000:05:00): 79, demo",
        "nvrm: xid (PCI:0000:05:00): 79, demo",
        " NVRM: Xid (PCI:0000:05:00): 79, demo",
        "x NVRM: Xid (PCI:0000:05:00): 79, demo",
        "user program printed: Xid 79 looks scary",
        "NVRM: GPU0 Xid 79 is a word here",
        "Xid (PCI:0000:05:00): 79, demo",
        "",
        "NVRM: ",
        "NVRM: Xid (",
    ],
)
def test_words_without_the_shape_are_nothing(line):
    assert list(parse([line])) == []


def test_the_text_is_bounded_and_prints():
    text = finding(f"{HEAD}62, \x1b]0;owned\x07 {'y' * 100_000}").text
    assert len(text) <= 512
    assert text.isprintable()
    assert text.isascii()


@pytest.mark.parametrize("code", ["8", "62", "063", "173", "999", "999999"])
def test_any_code_is_taken(code):
    assert finding(f"{HEAD}{code}, demo").code == str(int(code))


def test_the_uuid_is_learnt_from_the_line_that_is_written_once():
    uuid = "GPU-11112222-3333-4444-5555-666677778888"
    event = only(f"NVRM: GPU at PCI:0000:4C:00: {uuid}", f"{HEAD}79, GPU link lost demo")
    assert (event.uuid, event.pci) == (uuid, "0000:4c:00")


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: GPU at PCI:0000:4c:00: GPU-1111",
        "NVRM: GPU at PCI:0000:4c:00 has resumed: GPU-11112222-3333-4444-5555-666677778888",
        "NVRM: GPU at PCI:0000:5d:00: GPU-11112222-3333-4444-5555-666677778888",
        "bash[7]: NVRM: GPU at PCI:0000:4c:00: GPU-11112222-3333-4444-5555-666677778888",
    ],
)
def test_a_lost_gpu_whose_uuid_nobody_told_is_kept_without(line):
    event = only(line, f"{HEAD}79, GPU has fallen off the bus.")
    assert (event.code, event.pci, event.uuid) == ("79", "0000:4c:00", None)


def test_a_uuid_that_the_caller_knows_is_used_until_the_log_says_another():
    known = {"00000000:4C:00.0": "GPU-known"}
    line = f"{HEAD}79, GPU has fallen off the bus."
    assert only(line, uuids=known).uuid == "GPU-known"
    told = "NVRM: GPU at PCI:0000:4c:00: GPU-AAAABBBB-cccc-dddd-eeee-ffff00001111"
    assert only(told, line, uuids=known).uuid == "GPU-aaaabbbb-cccc-dddd-eeee-ffff00001111"
