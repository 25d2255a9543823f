"""Files that no person means: each is a clear error, in bounded time and memory, and no other exception."""

import contextlib
import string
from datetime import timedelta

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from policy.factories import SMALLEST, problems

from gpu_runbooks.workflows.policy.file import LONGEST_MESSAGE, MOST_SHOWN, PolicyError, load_policy
from gpu_runbooks.workflows.policy.yaml_lines import DEEPEST, LARGEST

RULE = "faults: [{name: a, match: {source: alert, code: %s}, ladder: reset}]"


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        ("[" * 100_000, f"line 1: the file: not YAML: it is nested deeper than {DEEPEST} levels"),
        ("{a: " * 50_000, f"line 1: the file: not YAML: it is nested deeper than {DEEPEST} levels"),
        ("- " * 50_000 + "a", f"line 1: the file: not YAML: it is nested deeper than {DEEPEST} levels"),
        ("mode: &a [*a]", "line 1: the file: not YAML: aliases are not read here"),
        ("mode: !!python/object/apply:os.system [id]", "line 1: the file: not YAML: tags are not read here"),
        ("a: 1\nmode: !!binary aGk=", "line 2: the file: not YAML: tags are not read here"),
        ("mode: !secret x", "line 1: the file: not YAML: tags are not read here"),
        ("!!set {a, b}", "line 1: the file: not YAML: tags are not read here"),
        ("mode: enforce\npools: \x00", "line 2: the file: not YAML: the character U+0000 is no text"),
        ("mode: enforce\n\n\x1b[31mred", "line 3: the file: not YAML: the character U+001B is no text"),
        (
            "mode: enforce\npools:\n\t- a",
            "line 3: the file: not YAML: while scanning for the next token, found",
        ),
        (b"mode: enforce\npools: \xff\xfe", "line 2: the file: not UTF-8: byte 0xff is no text"),
        (SMALLEST.encode("utf-16"), "line 1: the file: not UTF-8"),
        (b"#" * (LARGEST + 1), "line 1: the file: larger than 256 KiB"),
        (b"\x00" * 10_000_000, "line 1: the file: larger than 256 KiB"),
        ("#" * 10_000_000, "line 1: the file: larger than 256 KiB"),
        (b"", "line 1: the file: it is empty"),
        (b"\xef\xbb\xbf", "line 1: the file: it is empty"),
        ("null", "line 1: the file: it is empty"),
        ("79", "line 1: the file: write fields here"),
        ("<<: {mode: enforce}", "line 1: <<: unknown field"),
        ("mode: enforce\n...\nrest", "line 3: the file: not YAML"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_cannot_be_read(file, problem):
    assert problems(file)[0].startswith(problem)


def test_byte_order_mark_is_no_error():
    assert load_policy(b"\xef\xbb\xbf" + SMALLEST.encode()).digest == load_policy(SMALLEST).digest


def test_windows_line_ends_are_no_error():
    assert load_policy(SMALLEST.replace("\n", "\r\n").encode()).digest == load_policy(SMALLEST).digest


@pytest.mark.parametrize(
    "number",
    ["9" * 5_000, "0x" + "f" * 5_000, "1e400", "1_000", "010", "0b11", "0o17", ".inf", ".nan", "1:30", "+3"],
)
def test_numbers_that_are_no_plain_ones(number):
    found = problems(SMALLEST.replace("max_unavailable: 3", f"max_unavailable: {number}x"))
    assert found[0].startswith("line 5: pools[0].budget.max_unavailable: it should be a valid integer; not")
    if number == "+3":
        return
    found = problems(SMALLEST.replace("max_unavailable: 3", f"max_unavailable: {number}"))
    assert found[0].startswith("line 5: pools[0].budget.max_unavailable: it should be a valid integer; not")


LONG = ["9999999999d", "99999999999999999999"[:19] + "s", "4000000d", "366d", "365d1s", "8761h"]


@pytest.mark.parametrize("duration", LONG)
@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("operator: {reminder: %s}", "operator.reminder"),
        ("probation: %s", "probation"),
        ("intake: {max_age: %s}", "intake.max_age"),
        ("ladders: {notify: [{rung: notify_owner, timeout: %s}]}", "ladders.notify[0].timeout"),
        ("drain: {silent_node: %s}", "drain.silent_node"),
        ("repair: {repeats: {window: %s}}", "repair.repeats.window"),
        (RULE.replace("ladder", "toleration: %s, ladder") % ("A", "%s"), "faults[0].toleration"),
    ],
)
def test_duration_that_no_wait_lasts(text, field, duration):
    (problem,) = problems(SMALLEST + text % duration)
    assert problem == f"line 8: {field}: write a duration of at most 365d; not '{duration}'"


def test_year_is_a_duration():
    (rule,) = load_policy(SMALLEST + RULE.replace("ladder", "toleration: 365d, ladder") % "A").faults
    assert rule.toleration == timedelta(days=365)


@pytest.mark.parametrize(
    ("written", "code"),
    [
        ("010", "010"),
        ("0x4F", "0x4F"),
        ("1_0", "1_0"),
        ("22:00", "22:00"),
        ("2026-13-45", "2026-13-45"),
        ("=", "="),
    ],
)
def test_words_stay_as_they_are_written(written, code):
    (rule,) = load_policy(SMALLEST + RULE % written).faults
    assert rule.match.written_codes() == (code,)


def test_long_and_unprintable_words_are_cut_in_errors():
    text = f'{SMALLEST}"\\e[31m{"k" * 1000}": 1\nprobation: {"1" * 100_000}\n'
    key, reminder = problems(text)
    assert key.startswith("line 8: '\\x1b[31mkkkk")
    assert "\x1b" not in key
    assert reminder.startswith("line 9: probation: write a duration with units")
    assert max(map(len, (key, reminder))) < LONGEST_MESSAGE + 200


@pytest.mark.parametrize(
    "text",
    [
        'drain: {rules: [{name: a, faults: ["\\e[31mred\\nline"], method: evict}]}',
        RULE.replace("reset", '"\\e[31mred\\nline"') % "A",
        'faults: [{name: a, match: {source: xid, code: 8}, application: true, repeats: {ladder: "\\e[31m"}}]',
        'hardware: {"\\e[31m\\n": {gpus: 1}}',
        'faults: [{name: a, match: {source: efa, code: "\\e[31m\\nx"}, ladder: block}]',
    ],
)
def test_errors_hold_nothing_that_controls_a_terminal(text):
    found = problems(SMALLEST + text)
    assert found
    assert all(map(str.isprintable, found))
    assert "\\x1b[31m" in found[0]


def test_many_errors_make_no_long_text():
    with pytest.raises(PolicyError) as error:
        load_policy(SMALLEST + "".join(f"field{number}: 1\n" for number in range(1000)))
    assert len(error.value.problems) == 1000
    first, *shown, last = str(error.value).splitlines()
    assert (first, len(shown), last) == ("the policy has 1000 errors:", MOST_SHOWN, "  and 950 more")


@pytest.mark.parametrize(
    ("section", "line", "most"),
    [
        ("faults", "- {name: r%d, match: {source: alert, code: A}, ladder: rest}", 1000),
        ("ladders", "  l%d: [{rung: drain}]", 100),
        ("hardware", "  p5.%d: {gpus: 1}", 200),
    ],
)
def test_section_full_of_entries_says_how_many_may_be(section, line, most):
    lines = "".join(f"{line % number}\n" for number in range(most + 50))
    found = problems(f"{SMALLEST}{section}:\n{lines}")
    assert any(f": {section}: write at most {most}; there are {most + 50}" in each for each in found)


def test_file_full_of_pools_says_how_many_may_be():
    pools = "".join(
        f"- {{name: p{n}, selector: {{a: b}}, budget: {{max_unavailable: 1}}}}\n" for n in range(210)
    )
    found = problems(SMALLEST.replace("validation:", f"{pools}validation:"))
    assert any("pools: write at most 200; there are 211" in each for each in found)


WORDS = st.sampled_from(
    [
        *"[]{}:,-?&*!|>'\"%@`#\n \t",
        *(
            "mode: ",
            "pools:",
            "- ",
            "  ",
            "name: ",
            "selector: ",
            "budget: ",
            "faults:",
            "match: ",
            "source: ",
        ),
        *("condition", "code: ", "status: ", "reasons: ", "ladders:", "rung: ", "approval: ", "windows: "),
        *("begins: ", "22:00", "lasts: ", "8h", "timezone: ", "hardware:", "p5.48xlarge: ", "gpus: ", "null"),
        *(
            "true",
            "0",
            "-1",
            ".nan",
            "\ufeff",
            "\u2028",
            "\x85",
            "é",
            "💥",
            "repeats: ",
            "intake: ",
            "drain: ",
        ),
    ]
)


@given(st.lists(WORDS, max_size=60).map("".join))
@settings(max_examples=150, deadline=None, database=None)
def test_words_in_any_order_are_refused_or_read(text):
    with contextlib.suppress(PolicyError):
        load_policy(text)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(string.printable, max_size=20)
    | st.sampled_from(["", "none", "True", "xid", "8h", "22:00", "mon", "UTC"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "match", "rung", "days", "gpus", "source", "x"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)
FIELDS = (
    *("mode", "intake", "pools", "hardware", "ladders", "faults", "drain", "repair", "validation"),
    *("operator", "probation"),
)


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4))
@settings(max_examples=80, deadline=None, database=None)
def test_values_of_any_type_in_any_field(fields):
    text = SMALLEST + yaml.safe_dump({f"{name}": value for name, value in fields.items()}, allow_unicode=True)
    with contextlib.suppress(PolicyError):
        load_policy(text)
