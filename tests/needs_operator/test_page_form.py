"""What Alertmanager and the API server are told of a page, as tables."""

from datetime import timedelta

import aiohttp
import pytest
from incident.plans import T0

from gpu_runbooks.activities.model.page import Page
from gpu_runbooks.activities.paging.alert import LONGEST_LABEL, MOST_LABELS, alert, labels
from gpu_runbooks.activities.paging.alertmanagers import Alertmanagers, addresses
from gpu_runbooks.activities.paging.event import LONGEST_NOTE, event


def page(**changes) -> Page:
    values = {
        "alert": "GpuRunbookNeedsOperator",
        "labels": {"node": "n1", "pool": "p5"},
        "node": "n1",
        "summary": "node n1 needs a person",
        "advice": "look",
        "since": T0,
        "until": T0 + timedelta(hours=2),
    }
    return Page(**{**values, **changes})


def test_labels_are_clean_and_few():
    given = {
        "node": "n1\nn2\x1b[31m",
        "long": "x" * 5000,
        "empty": " ",
        "not a name": "x",
        "gpu-runbooks.dev/pool": "x",
        "alertname": "Other",
        "severity": "none",
        **{f"l{number}": "x" for number in range(50)},
    }
    cleaned = labels(page(labels=given))
    assert cleaned["node"] == "n1 n2 [31m"
    assert len(cleaned["long"]) == LONGEST_LABEL
    assert (cleaned["alertname"], cleaned["severity"]) == ("GpuRunbookNeedsOperator", "warning")
    assert not {"empty", "not a name", "gpu-runbooks.dev/pool"} & set(cleaned)
    assert len(cleaned) <= MOST_LABELS + 2


def test_repeated_page_is_the_same_alert_with_a_later_end():
    first = alert(page(), T0)
    again = alert(page(until=T0 + timedelta(hours=3), summary="still"), T0 + timedelta(hours=1))
    assert first["labels"] == again["labels"]
    assert first["startsAt"] == again["startsAt"]
    assert first["endsAt"] < again["endsAt"]


@pytest.mark.parametrize("now", [T0, T0 + timedelta(hours=1), T0 - timedelta(minutes=5)])
def test_page_that_is_over_ends_now_and_never_before_it_began(now):
    told = alert(page(over=True), now)
    assert told["startsAt"] <= told["endsAt"] == now.isoformat()


def test_event_of_a_page_is_short_and_the_same_when_repeated():
    long = page(summary="ü" * 2000)
    first, again = event(long, "uid", T0), event(long, "uid", T0 + timedelta(hours=1))
    assert len(first["note"].encode()) <= LONGEST_NOTE
    assert first["metadata"]["name"] == again["metadata"]["name"]
    later = event(page(since=T0 + timedelta(hours=1)), "uid", T0)
    assert later["metadata"]["name"] != first["metadata"]["name"]


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        ("", ()),
        (" , ", ()),
        ("http://am:9093", ("http://am:9093",)),
        ("http://a:9093/, https://b/am , http://a:9093", ("http://a:9093", "https://b/am")),
    ],
)
def test_addresses_of_the_setting(setting, found):
    assert addresses(setting) == found


@pytest.mark.parametrize(
    "setting",
    [
        *(
            "am:9093",
            "ftp://am",
            "http://",
            "http://am:port",
            "http://am?x=1",
            "http://a, http:b",
            "http://am#x",
        ),
        *(
            "http://alertmanager..monitoring:9093",
            "http://.:9093",
            f"http://{'x' * 64}:9093",
            "http://a m:9093",
        ),
    ],
)
def test_what_is_no_address_is_refused_in_words(setting):
    with pytest.raises(ValueError, match=r"GPU_RUNBOOKS_ALERTMANAGER: .* write such as http://"):
        addresses(setting)


def test_password_of_an_address_is_not_repeated():
    with pytest.raises(ValueError, match="no address") as refused:
        addresses("http://ana:secret@am:port")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("address", ["http://alertmanager..monitoring:9093", "http://a b:9093"])
async def test_an_address_that_no_client_takes_is_a_problem_and_no_error(address):
    async with aiohttp.ClientSession() as session:
        took, problems = await Alertmanagers((address,), session).tell({})
    assert took == 0
    assert problems[0].startswith(address)


async def test_without_an_address_nobody_is_told():
    async with Alertmanagers.connect("") as alertmanagers:
        assert not alertmanagers.known
        assert await alertmanagers.tell({}) == (0, [])
