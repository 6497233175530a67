"""Metrics are written as Prometheus reads them."""

import re

from clearhead.serve.metrics import Metrics

LINE = re.compile(r'[a-z_]+(\{[a-z]+="[^"\n]*"(,[a-z]+="[^"\n]*")*\})? [-+.e\d]+')


def test_a_histogram_counts_up_to_every_bound():
    metrics = Metrics()
    for seconds in (0.001, 0.3, 0.3, 1000.0):
        metrics.observe("request_seconds", seconds, route="/v1/fill")
    rows = dict(line.rsplit(" ", 1) for line in metrics.text().splitlines() if "seconds_" in line)
    at = {key.partition('le="')[2].rstrip('"}'): int(value) for key, value in rows.items() if "_bucket" in key}
    assert (at["0.005"], at["0.25"], at["0.5"], at["120"], at["+Inf"]) == (1, 1, 3, 3, 4)
    assert rows['clearhead_request_seconds_count{route="/v1/fill"}'] == "4"
    assert float(rows['clearhead_request_seconds_sum{route="/v1/fill"}']) == 1000.601


def test_every_line_has_the_format_and_every_metric_a_type():
    metrics = Metrics()
    metrics.count("requests_total", route="/v1/fill", status="200")
    metrics.set("ready", 1)
    metrics.observe("batch_rows", 3, model="a")
    lines = metrics.text().splitlines()
    assert [line for line in lines if not line.startswith("# ") and not LINE.fullmatch(line.replace("+Inf", "0"))] == []
    named = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    used = {re.sub(r"_(bucket|sum|count)$", "", line.partition("{")[0].split()[0]) for line in lines if line[0] != "#"}
    assert used == named
