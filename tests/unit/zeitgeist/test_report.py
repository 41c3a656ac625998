"""The report is one file that fetches nothing and shows everything."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

from examples.zeitgeist import report
from examples.zeitgeist.detector import Anomaly
from examples.zeitgeist.model import WINDOW_US
from examples.zeitgeist.report import Point, Stat

SPIKE = Anomaly(
    "page", "/a<b>&.html", "spike", "1995-07-13T08:00:00-04:00", "1995-07-13T09:00:00-04:00", 900, 120.5, 31.2, False
)
DIP = Anomaly("site", "", "dip", "1995-07-13T19:40:00-04:00", "1995-07-13T20:10:00-04:00", 77, 2570.0, 79.3, False)
EIGHT_US = 805_636_800_000_000  # 08:00 on 13 July at UTC-4


def points(hours: int = 30) -> list[Point]:
    return [(EIGHT_US + (at - 120) * WINDOW_US, 75 if 120 <= at < 132 else 10, 10.0) for at in range(hours * 12)]


def pictures(html: str) -> list[ET.Element]:
    return [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]


def test_a_report_stands_alone(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    report.write_report(out, [SPIKE, DIP], lambda *_: points(), "Launch & after", [Stat("requests", "391,247")])
    html = out.read_text(encoding="utf-8")
    assert not re.search(r"(src|href|url)\s*[=(]|@import|<script", html)
    assert "Launch &amp; after" in html
    assert "391,247" in html
    assert "/a&lt;b&gt;&amp;.html" in html
    assert "/a<b>" not in html
    assert len(pictures(html)) == 2


def test_a_picture_shows_the_episode_in_its_surroundings() -> None:
    picture = ET.fromstring(report.picture(SPIKE, points()))
    band = next(part for part in picture.iter("rect"))
    assert band.get("class") == "band spike"
    assert float(band.get("width", "0")) > 60
    labels = [text.text for text in picture.iter("text")]
    assert {"06:00", "08:00", "10:00"} <= set(labels)


def test_every_place_lies_in_the_picture() -> None:
    picture = ET.fromstring(report.picture(SPIKE, points()))
    line = next(part for part in picture.iter("polyline")).get("points", "")
    places = [tuple(map(float, place.split(","))) for place in line.split()]
    assert len(places) == 7 * 12
    assert all(report.LEFT <= x <= report.WIDTH and 0 <= y <= report.HEIGHT for x, y in places)


def test_long_episodes_are_thinned() -> None:
    long = Anomaly("page", "/a", "dip", "1995-07-13T08:00:00-04:00", "1995-07-15T08:00:00-04:00", 0, 9.0, 9.0, False)
    line = next(ET.fromstring(report.picture(long, points(80))).iter("polyline")).get("points", "")
    assert 90 <= len(line.split()) <= report.MAX_BARS


def test_an_anomaly_without_a_series_is_still_listed() -> None:
    html = report.render([SPIKE], report.series_from({}), "Empty")
    assert pictures(html) == []
    assert "900" in html


def test_a_report_of_nothing() -> None:
    assert "No anomalies." in report.render([], report.series_from({}), "Quiet")


def test_weaker_pages_beyond_the_limit_are_listed_without_a_picture() -> None:
    rows = [SPIKE] * (report.LARGEST_PAGES + 3)
    html = report.render(rows, lambda *_: points(), "Many")
    assert len(pictures(html)) == report.LARGEST_PAGES
    assert html.count("/a&lt;b&gt;") >= len(rows)
