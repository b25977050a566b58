"""A chart of what became of the flights: as a picture, and as a page that needs no network."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import altair as alt
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from examples.flights.rules import (
    CAUSES,
    NeverDeparted,
    NoArrivalTime,
    NoTimeInTheAir,
    UnknownDestination,
    error_type,
    title,
)

PROCESSED, SENT_BACK = "processed", "processed after the repair"
_OTHERS = "other causes"
FIRST, REPAIRED = "the first time through", "after the repair"
#: In the order of legends, each with its colour (Okabe and Ito's, which the colour-blind can tell apart).
_COLORS: dict[str, str] = {
    title(UnknownDestination): "#0072b2",
    title(NeverDeparted): "#d55e00",
    title(NoArrivalTime): "#f0e442",
    title(NoTimeInTheAir): "#009e73",
    _OTHERS: "#999999",
}
_BAR, _MEDIAN, _ZERO = "#56b4e9", "#1f3b57", "#444444"
_WIDTH = 640
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


def outcomes_by_month(results: DataFrame, dead: DataFrame) -> list[dict[str, Any]]:
    """Return month, outcome and flights: from the results, and from the queue's own dead letters."""
    done = results.select("month", f.when(results.sent_back, SENT_BACK).otherwise(PROCESSED).alias("outcome"))
    month = f.get_json_object(dead.body.cast("string"), "$.month").cast("int")
    aside = dead.select(month.alias("month"), _cause(dead.error_type).alias("outcome"))
    counted = done.unionByName(aside).groupBy("month", "outcome").agg(f.count("*").alias("flights"))
    return [
        {"month": _MONTHS[row.month - 1], "outcome": row.outcome, "flights": row.flights}
        for row in counted.orderBy("month", "outcome").collect()
    ]


def delays_by_airline(results: DataFrame) -> list[dict[str, Any]]:
    """Return airline, flights, and the quartiles of its minutes late at arrival."""
    quartiles = f.percentile("arr_delay", f.array(f.lit(0.25), f.lit(0.5), f.lit(0.75)))
    by_airline = results.groupBy("airline").agg(quartiles.alias("at"), f.count("*").alias("flights"))
    return [
        dict(zip(("low", "median", "high"), row["at"], strict=True), airline=row.airline, flights=row.flights)
        for row in by_airline.collect()
    ]


def _cause(kind: Column) -> Column:
    found = f.lit(_OTHERS)
    for cause in CAUSES:
        found = f.when(kind == error_type(cause), title(cause)).otherwise(found)
    return found


def draw(months: list[dict[str, Any]], airlines: list[dict[str, Any]]) -> Any:
    """Return the chart: what the repair did, dead letters by month, and delay by airline."""
    dead = [row for row in months if row["outcome"] not in (PROCESSED, SENT_BACK)]
    return (
        alt.vconcat(
            _repair(dead_letters_by_cause(months)),
            _bars("Dead letters after the repair, by month", dead),
            _ranges("Minutes late at arrival, by airline: median and middle half of the flights", airlines),
        )
        .resolve_scale(color="independent")
        .configure_title(anchor="start", frame="group", fontSize=14)
        .configure_axis(domain=False)
    )


def dead_letters_by_cause(months: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return when, cause and flights: the dead letters before and after the repair."""
    left: Counter[str] = Counter()
    repaired = 0
    for row in months:
        if row["outcome"] == SENT_BACK:
            repaired += row["flights"]
        elif row["outcome"] != PROCESSED:
            left[row["outcome"]] += row["flights"]
    first = Counter({**left, title(UnknownDestination): left[title(UnknownDestination)] + repaired})
    return [
        {"when": when, "cause": cause, "flights": flights}
        for when, causes in ((FIRST, first), (REPAIRED, left))
        for cause, flights in causes.items()
        if flights
    ]


def _palette(present: set[str]) -> Any:
    """Return the colour of each outcome that is there."""
    names = [outcome for outcome in _COLORS if outcome in present]
    return alt.Scale(domain=names, range=[_COLORS[name] for name in names])


def _repair(rows: list[dict[str, Any]]) -> Any:
    ranks = list(_COLORS)
    rows = [{**row, "rank": ranks.index(row["cause"])} for row in rows]
    totals: Counter[str] = Counter()
    for row in rows:
        totals[row["when"]] += row["flights"]
    whens = [FIRST, REPAIRED]
    room = max(totals.values(), default=1) * 1.1
    y = alt.Y("when:N", sort=whens, title=None, axis=alt.Axis(ticks=False))
    bars = (
        alt.Chart(alt.InlineData(rows), width=_WIDTH, height=alt.Step(44))
        .mark_bar(height=30)
        .encode(
            x=alt.X("flights:Q", title="dead letters", stack="zero", scale=alt.Scale(domain=[0, room])),
            y=y,
            color=alt.Color("cause:N", scale=_palette({row["cause"] for row in rows}), title=None),
            order="rank:O",
            tooltip=["when:N", "cause:N", alt.Tooltip("flights:Q", format=",")],
        )
    )
    ends = [{"when": when, "dead": totals[when]} for when in whens]
    text = (
        alt.Chart(alt.InlineData(ends))
        .mark_text(align="left", dx=6, fontWeight="bold")
        .encode(x="dead:Q", y=y, text=alt.Text("dead:Q", format=","))
    )
    sent_back = [row for row in rows if (row["when"], row["rank"]) == (FIRST, 0)]
    named = (
        alt.Chart(alt.InlineData([{**row, "text": f"{row['flights']:,} sent back"} for row in sent_back]))
        .mark_text(align="left", dx=8, color="white", fontWeight="bold")
        .encode(x=alt.XDatum(0), y=y, text="text:N")
    )
    heading = "Dead letters by cause: the repair sends one cause back"
    return alt.layer(bars, text, *([named] if sent_back else [])).properties(title=heading)


def _bars(heading: str, rows: list[dict[str, Any]]) -> Any:
    return (
        alt.Chart(alt.InlineData(rows), title=heading, width=_WIDTH, height=170)
        .mark_bar()
        .encode(
            x=alt.X(
                "month:O",
                sort=_MONTHS,
                scale=alt.Scale(domain=_MONTHS),
                title=None,
                axis=alt.Axis(labelAngle=0),
            ),
            y=alt.Y("flights:Q", title="dead letters"),
            color=alt.Color(
                "outcome:N",
                scale=_palette({row["outcome"] for row in rows}),
                title=None,
                legend=alt.Legend(labelLimit=200),
            ),
            tooltip=["month:O", "outcome:N", alt.Tooltip("flights:Q", format=",")],
        )
    )


def _ranges(heading: str, rows: list[dict[str, Any]]) -> Any:
    rows = [{**row, "name": f"{row['airline']} (n = {row['flights']:,})"} for row in rows]
    names = [row["name"] for row in sorted(rows, key=lambda row: row["median"])]
    chart = alt.Chart(alt.InlineData(rows), title=heading, width=_WIDTH).encode(
        y=alt.Y("name:N", sort=names, title=None, axis=alt.Axis(labelLimit=260, ticks=False)),
        tooltip=[*map(alt.Tooltip, ("airline:N", "low:Q", "median:Q", "high:Q", "flights:Q"))],
    )
    half = chart.mark_bar(height=8, color=_BAR).encode(
        x=alt.X("low:Q", title="minutes late (less than 0: early)"), x2="high:Q"
    )
    zero = alt.Chart(alt.InlineData([{"at": 0}])).mark_rule(color=_ZERO, strokeWidth=1.5).encode(x="at:Q")
    return alt.layer(zero, half, chart.mark_tick(thickness=3, size=16, color=_MEDIAN).encode(x="median:Q"))


def save_page(chart: Any, page: Path) -> None:
    """Write a chart as HTML that has all it needs within. Texts in it end no script."""
    made = io.StringIO()
    chart.save(made, format="html", inline=True)
    text, told = made.getvalue(), json.dumps(chart.to_dict())
    assert told in text, "expected the chart as JSON in its page"
    page.write_text(text.replace(told, told.replace("<", "\\u003c")), "utf-8")


def write(chart: Any, folder: Path) -> list[Path]:
    """Write the chart as PNG and as HTML that has all it needs within; return where."""
    picture, page = folder / "flights.png", folder / "flights.html"
    chart.save(str(picture), ppi=144)
    save_page(chart, page)
    return [picture, page]


def chart_of(spark: SparkSession, store: str, queue: str, results: str, folder: Path) -> list[Path]:
    """Draw the flights of a queue and its results; return the files."""
    dead = spark.read.format("lazaretto").option("store", store).option("queue", queue)
    found = spark.read.parquet(results)
    letters = dead.option("view", "dead_letters").load()
    return write(draw(outcomes_by_month(found, letters), delays_by_airline(found)), folder)
