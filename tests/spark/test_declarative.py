"""What the page says of Declarative Pipelines, as the installed Spark has them: flows over Spark Connect."""

from __future__ import annotations

import ast
from pathlib import Path

import pyspark

PIPELINES = Path(pyspark.__file__).parent / "pipelines"


def test_a_sink_is_a_format_with_options_and_no_function_runs_for_each_micro_batch() -> None:
    functions = {
        node.name: [one.arg for one in node.args.args]
        for node in ast.parse((PIPELINES / "api.py").read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    assert functions["create_sink"] == ["name", "format", "options"]
    # A pipeline that has one could settle a micro-batch: then process and quarantine may work there.
    assert [name for name in functions if "batch" in name] == []


def test_their_flows_run_over_spark_connect() -> None:
    text = (PIPELINES / "cli.py").read_text("utf-8")
    assert "from pyspark.pipelines.spark_connect_pipeline import" in text
