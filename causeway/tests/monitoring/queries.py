"""Runs every query of Grafana dashboards, as Grafana would, against a Prometheus: queries.py PROMETHEUS DASHBOARD…

Each query must be valid, have at least one series, and each series must have the labels that its legend shows. Queries
are repeated until they do, at most for a minute: recording rules and rates need several scrapes.
"""

import json
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

PATIENCE_SECONDS = 60
# Variables of Grafana.
VARIABLES = {"$__rate_interval": "10s", "$instance": ".+"}


def queries(file):
    """The queries of a dashboard: the panel's title, the expression, the labels in the legend."""
    with open(file, encoding="utf-8") as text:
        dashboard = json.load(text)
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            expression = target["expr"]
            for variable, value in VARIABLES.items():
                expression = expression.replace(variable, value)
            labels = re.findall(r"{{(\w+)}}", target["legendFormat"])
            yield f'{dashboard["title"]}, "{panel["title"]}"', expression, labels


def ask(prometheus, expression):
    """The series of an expression."""
    url = f"{prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]["result"]
    except urllib.error.HTTPError as error:
        sys.exit(f"{expression}\nis invalid: {error.read().decode()}")


def defect(prometheus, expression, labels):
    """What is wrong with the answer, or None."""
    series = ask(prometheus, expression)
    if not series:
        return "has no series"
    missing = {label for label in labels for one in series if label not in one["metric"]}
    return f"has series without the labels {sorted(missing)} of its legend" if missing else None


def main():
    prometheus, *files = sys.argv[1:]
    waiting = [query for file in files for query in queries(file)]
    count = len(waiting)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        failed = []
        for place, expression, labels in waiting:
            if wrong := defect(prometheus, expression, labels):
                failed.append((place, expression, labels, wrong))
        if not failed:
            print(f"{count} queries of {len(files)} dashboards have series")
            return
        if time.monotonic() > deadline:
            sys.exit("\n".join(f"{place}: {expression}\n  {wrong}" for place, expression, _, wrong in failed))
        waiting = [query[:3] for query in failed]
        time.sleep(0.5)


main()
