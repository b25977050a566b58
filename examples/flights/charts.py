"""A chart of what became of the flights: as a picture, and as a page that needs no network."""

from __future__ import annotations

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
#: In the order of legends, each with its colour.
_COLORS: dict[str, str] = {
    PROCESSED: "#4c78a8",
    SENT_BACK: "#72b7b2",
    title(NeverDeparted): "#e45756",
    title(NoArrivalTime): "#f58518",
    title(NoTimeInTheAir): "#eeca3b",
    title(UnknownDestination): "#b279a2",
    _OTHERS: "#9d755d",
}
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
    """Return the chart: flights by outcome and month, and delay by airline."""
    done = {PROCESSED, SENT_BACK}
    return (
        alt.vconcat(
            _bars("Flights processed, by month", [row for row in months if row["outcome"] in done]),
            _bars(
                "Flights set aside, by month and cause", [row for row in months if row["outcome"] not in done]
            ),
            _ranges("Minutes late at arrival, by airline: median, and half of all flights", airlines),
        )
        .resolve_scale(color="independent")
        .configure_title(anchor="start", fontSize=14)
    )


def _bars(heading: str, rows: list[dict[str, Any]]) -> Any:
    here = {row["outcome"] for row in rows}
    present = [outcome for outcome in _COLORS if outcome in here]
    colors = alt.Scale(domain=present, range=[_COLORS[outcome] for outcome in present])
    return (
        alt.Chart(alt.InlineData(rows), title=heading, width=640, height=170)
        .mark_bar()
        .encode(
            x=alt.X("month:O", sort=_MONTHS, title=None, axis=alt.Axis(labelAngle=0)),
            y=alt.Y("flights:Q", title="flights"),
            color=alt.Color("outcome:N", scale=colors, title=None, legend=alt.Legend(labelLimit=200)),
            tooltip=["month:O", "outcome:N", alt.Tooltip("flights:Q", format=",")],
        )
    )


def _ranges(heading: str, rows: list[dict[str, Any]]) -> Any:
    names = [row["airline"] for row in sorted(rows, key=lambda row: row["median"])]
    chart = alt.Chart(alt.InlineData(rows), title=heading, width=640).encode(
        y=alt.Y("airline:N", sort=names, title=None, axis=alt.Axis(labelLimit=240)),
        tooltip=[*map(alt.Tooltip, ("airline:N", "low:Q", "median:Q", "high:Q", "flights:Q"))],
    )
    half = chart.mark_bar(height=8, color=_COLORS[PROCESSED], opacity=0.5).encode(
        x=alt.X("low:Q", title="minutes late (less than 0: early)"), x2="high:Q"
    )
    return alt.layer(half, chart.mark_tick(thickness=3, size=16, color="#1f3b57").encode(x="median:Q"))


def write(chart: Any, folder: Path) -> list[Path]:
    """Write the chart as PNG and as HTML that has all it needs within; return where."""
    picture, page = folder / "flights.png", folder / "flights.html"
    chart.save(str(picture), ppi=96)
    chart.save(str(page), inline=True)
    return [picture, page]


def chart_of(spark: SparkSession, store: str, queue: str, results: str, folder: Path) -> list[Path]:
    """Draw the flights of a queue and its results; return the files."""
    dead = spark.read.format("lazaretto").option("store", store).option("queue", queue)
    found = spark.read.parquet(results)
    letters = dead.option("view", "dead_letters").load()
    return write(draw(outcomes_by_month(found, letters), delays_by_airline(found)), folder)
