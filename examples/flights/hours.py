"""A chart of the dead letters by hour, stacked by cause, from the tables that triage on Spark leaves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import altair as alt
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from examples.flights.charts import save_page

#: Okabe and Ito's, which the colour-blind can tell apart; more causes share the last.
_COLORS = ["#d55e00", "#0072b2", "#009e73", "#f0e442", "#cc79a7", "#56b4e9", "#999999"]
_OTHERS = "other causes"
_MOST_HOURS = 72
_WIDTH = 640


def letters_by_hour(spark: SparkSession, tables: str) -> list[dict[str, Any]]:
    """Return hour (seconds since 1970), cause and letters; a cause is told by what its letters have."""
    causes = spark.read.parquet(f"{tables}/causes").select("cause", "error_type")
    told = spark.read.parquet(f"{tables}/differences").where("part = 1").select("cause", "filter")
    hours = spark.read.parquet(f"{tables}/cause_hours").withColumn("at", f.unix_timestamp("hour"))
    joined = hours.join(causes, "cause").join(told, "cause", "left").orderBy("cause", "at")
    return [
        {
            "at": row["at"], "rank": min(row["cause"], len(_COLORS)) - 1, "letters": row["letters"],
            "cause": row["filter"] or row["error_type"] or _OTHERS,
        }
        for row in joined.collect()
    ]  # fmt: skip


def draw(rows: list[dict[str, Any]]) -> Any:
    """Return the chart: a bar for each hour from the first to the last, at most of three days."""
    last = max((row["at"] for row in rows), default=0)
    shown = [
        {
            **row,
            "cause": row["cause"] if row["rank"] < len(_COLORS) - 1 else _OTHERS,
            "hour": _hour(row["at"]),
        }
        for row in rows
        if row["at"] > last - _MOST_HOURS * 3600
    ]
    first = min((row["at"] for row in shown), default=last)
    names = {row["rank"]: row["cause"] for row in shown}
    ranks = sorted(names)
    return (
        alt.Chart(
            alt.InlineData(shown), title="Dead letters by hour, by what they have in common", width=_WIDTH
        )
        .mark_bar(size=min(60, _WIDTH // (2 + (last - first) // 3600)))
        .encode(
            x=alt.X(
                "hour:O",
                title="UTC",
                scale=alt.Scale(domain=[_hour(at) for at in range(first, last + 1, 3600)]),
                axis=alt.Axis(labelAngle=0, labelOverlap=True),
            ),
            y=alt.Y("sum(letters):Q", title="dead letters", stack="zero"),
            color=alt.Color(
                "cause:N",
                title=None,
                scale=alt.Scale(domain=[names[r] for r in ranks], range=[_COLORS[r] for r in ranks]),
                legend=alt.Legend(labelLimit=320, orient="bottom", columns=1),
            ),
            order="rank:O",
            tooltip=["hour:O", "cause:N", alt.Tooltip("sum(letters):Q", format=",")],
        )
    )


def _hour(at: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=at)).strftime("%d %b %H:00")


def chart_of(spark: SparkSession, tables: str, folder: Path) -> list[Path]:
    """Draw the tables of a triage as a picture and as a page that needs no network; return the files."""
    chart, files = draw(letters_by_hour(spark, tables)), [folder / "causes.png", folder / "causes.html"]
    chart.save(str(files[0]), ppi=144)
    save_page(chart, files[1])
    return files
