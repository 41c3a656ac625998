"""The report is one file that fetches nothing, tells the story, and walks each key once."""

import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from examples.zeitgeist import pictures, report
from examples.zeitgeist.detector import Anomaly, Scope
from examples.zeitgeist.model import DAY_US, WINDOW_US
from examples.zeitgeist.pictures import Point
from examples.zeitgeist.report import Facts, Stat

SPIKE = Anomaly(
    "page", "/a<b>&.html", "spike", "1995-07-13T08:00:00-04:00", "1995-07-13T09:00:00-04:00", 900, 120.5, 31.2, False
)
LAUNCH = Anomaly("site", "", "spike", "1995-07-13T08:00:00-04:00", "1995-07-13T09:00:00-04:00", 900, 120.5, 75.0, False)
DIP = Anomaly("site", "", "dip", "1995-07-13T19:40:10-04:00", "1995-07-13T20:10:00-04:00", 77, 2570.0, 679.3, False)
EIGHT_US = 805_636_800_000_000  # 08:00 on 13 July at UTC-4
FACTS = Facts(
    title="Zeitgeist & more", log="access.log.gz", first_us=EIGHT_US - DAY_US, end_us=EIGHT_US + DAY_US, offset_s=-14400,
    stats=[Stat("requests", "391,247")],
)  # fmt: skip


def points(hours: int = 30) -> list[Point]:
    return [(EIGHT_US + (at - 120) * WINDOW_US, 75 if 120 <= at < 132 else 10, 10.0) for at in range(hours * 12)]


def svgs(html: str) -> list[ET.Element]:
    return [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]


def texts(svg: ET.Element) -> set[str | None]:
    return {part.text for part in svg.iter() if part.tag.endswith("text")}


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html))


def test_a_report_stands_alone(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    report.write_report(out, FACTS, [LAUNCH, SPIKE, DIP], lambda *_: points())
    html = out.read_text(encoding="utf-8")
    fetched = re.findall(r"""(?:src|href)=["']?([^"'>]*)|url\(([^)]*)|@import|<script""", html)
    assert all(target.startswith("#") for found in fetched for target in found if target)
    assert not re.search(r"@import|<script|src=", html)
    assert "/a&lt;b&gt;&amp;.html" in html
    assert "/a<b>" not in html
    assert len(svgs(html)) == 5  # two of the whole period: one for narrow screens


def test_it_tells_what_log_when_and_what_happened() -> None:
    html = report.render(FACTS, [LAUNCH, SPIKE, DIP], lambda *_: points())
    text = text_of(html)
    assert "Zeitgeist &amp; more" in html
    assert "access.log.gz &middot; 12 Jul 1995, 08:00 to 14 Jul 1995, 08:00 (UTC-04:00)" in text
    assert "391,247" in text
    assert "The whole site had 1 spike and 1 dip; single pages had 1 spike and no dip." in text
    assert "900 requests, where 120 were expected, while 1 page had a spike of their own" in text
    assert "Days without any alarm: 12 Jul 1995, 14 Jul 1995." in re.sub(r"\b\w{3} (\d+ Jul)", r"\1", text)


def test_spikes_come_first_by_score() -> None:
    weak = msgspec.structs.replace(
        LAUNCH, score=6.0, start="1995-07-12T09:00:00-04:00", end="1995-07-12T09:05:00-04:00"
    )
    html = report.render(FACTS, [weak, DIP, LAUNCH, SPIKE], lambda *_: points())
    scores = [float(found) for found in re.findall(r"score ([\d.]+)", html)]
    assert scores == [75.0, 6.0, 679.3, 31.2]


def test_what_is_open_says_so() -> None:
    still = msgspec.structs.replace(DIP, open=True)
    assert "still open at the end of the log" not in report.render(FACTS, [DIP], lambda *_: points())
    html = report.render(FACTS, [still], lambda *_: points())
    assert "still open at the end of the log" in html
    assert "When the log ended, 1 anomaly still went on." in html


def test_every_day_is_listed_with_its_alarms() -> None:
    html = report.render(FACTS, [LAUNCH, SPIKE], lambda *_: points())
    rows = re.findall(r"<tr( class=\"quiet\")?><th>(.*?)</th>(.*?)</tr>", html)
    assert [(bool(quiet), day[4:]) for quiet, day, _ in rows if "Jul" in day] == [
        (True, "12 Jul 1995"), (False, "13 Jul 1995"), (True, "14 Jul 1995"),
    ]  # fmt: skip


def test_a_picture_shows_the_episode_in_its_surroundings() -> None:
    picture = ET.fromstring(pictures.of_anomaly(SPIKE, points()))
    assert {"06:00", "08:00", "10:00"} <= texts(picture)
    assert "var(--spike)" in ET.tostring(picture, encoding="unicode")
    assert picture.get("width") is None  # as wide as its place


def test_a_narrow_screen_gets_the_whole_period_in_its_width() -> None:
    html = report.render(FACTS, [LAUNCH, DIP], lambda *_: points())
    wide, narrow = (
        ET.fromstring(svg) for svg in re.findall(r'<div class="overview[^>]*>(<svg.*?</svg>)', html, re.DOTALL)
    )
    widths = [float(svg.get("viewBox", "").split()[2]) for svg in (wide, narrow)]
    assert widths[1] < 375 < widths[0]  # so that its text is not smaller than it was drawn
    assert texts(narrow) >= {"13 Jul"}
    colours = ["var(--spike)", "var(--dip)"]
    assert all(colour in ET.tostring(svg, "unicode") for svg in (wide, narrow) for colour in colours)
    style = html[: html.index("</style>")]
    assert re.search(r"@media screen and \(max-width: \d+px\) \{ \.overview \{ display: none", style)


def test_rows_of_cards_may_stand_alone_on_a_printed_page() -> None:
    """A browser keeps two lines together, and a row of cards is a line: a third of each page stayed empty."""
    style = report.render(FACTS, [LAUNCH], lambda *_: points()).partition("@media print")[2]
    assert re.search(r"\.cards \{ orphans: 1; widows: 1; \}", style)


def test_pictures_are_small_also_of_long_episodes() -> None:
    long = msgspec.structs.replace(SPIKE, end="1995-07-15T08:00:00-04:00")
    assert len(pictures.of_anomaly(long, points(80))) < 20_000


@pytest.mark.parametrize("days", [0.2, 1, 4, 28, 200])
def test_times_are_marked_at_round_places(days: float) -> None:
    ticks = pictures._ticks(EIGHT_US, EIGHT_US + int(days * DAY_US), None)
    assert 2 <= len(ticks) <= 9


def test_each_key_is_walked_once() -> None:
    walks: Counter[tuple[Scope, str]] = Counter()

    def series(scope: Scope, key: str) -> Sequence[Point]:
        walks[scope, key] += 1
        return points()

    rows = [msgspec.structs.replace(SPIKE, key=f"/{at % 11}", score=float(at)) for at in range(367)]
    html = report.render(FACTS, [LAUNCH, DIP, *rows], series)
    assert set(walks.values()) == {1}
    assert len(walks) == 12
    assert len(svgs(html)) == report.PICTURED_PAGES + 4
    assert html.count('<td class="name">') == len(rows) - report.PICTURED_PAGES


def test_the_same_findings_give_the_same_bytes() -> None:
    assert report.render(FACTS, [LAUNCH, DIP], lambda *_: points()) == report.render(
        FACTS, [LAUNCH, DIP], lambda *_: points()
    )


def test_an_anomaly_without_a_series_is_still_listed() -> None:
    html = report.render(FACTS, [SPIKE], report.series_from({}))
    assert svgs(html) == []
    assert "900" in html


def test_a_report_of_nothing() -> None:
    assert "Nothing was out of the ordinary." in report.render(FACTS, [], report.series_from({}))
