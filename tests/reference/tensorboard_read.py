"""Reads a run's event files with the public TensorBoard and compares them with its metrics_file.

    python tests/reference/tensorboard_read.py RUN/tensorboard METRICS_FILE

Needs the PyPI package `tensorboard`. Reads twice: with the event reader, and through a TensorBoard server over HTTP.
Exits with 1 on the first difference.
"""
import json
import math
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer


def close(a, b):
    """Equal as float32, in which TensorBoard keeps scalars; JSON has null where the value isn't finite."""
    return (not math.isfinite(a)) if b is None else math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12)


def expected(metrics_file):
    """{tag: {step: value}} of the JSON lines."""
    series = {}
    for line in open(metrics_file):
        row = json.loads(line)
        step = int(row.pop("step"))
        row.pop("run_name")
        for tag, value in row.items():
            series.setdefault(tag, {})[step] = value
    return series


def compare(run, tag, found, wanted):
    assert found.keys() == wanted.keys(), f"{run} {tag}: steps {sorted(found)} instead of {sorted(wanted)}"
    for step, value in wanted.items():
        assert close(found[step], value), f"{run} {tag} at step {step}: {found[step]} instead of {value}"


def by_event_reader(folder, series):
    events = EventMultiplexer().AddRunsFromDirectory(folder).Reload()
    [run] = events.Runs()
    tags = events.Runs()[run]
    for tag, wanted in series.items():
        compare(run, tag, {e.step: e.value for e in events.Scalars(run, tag)}, wanted)
    texts = [tag for tag in tags["tensors"] if tag.endswith("/text_summary")]
    assert texts, "no text summaries"
    for tag in texts:
        assert events.SummaryMetadata(run, tag).plugin_data.plugin_name == "text", tag
    return run, len(texts)


def by_server(folder, series, run):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", "--logdir", folder, "--host", "127.0.0.1", "--port", str(port),
         "--load_fast=false"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        get = lambda path: json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/data/plugin/{path}"))
        tags = {}
        for _ in range(120):
            try:
                tags = get("scalars/tags").get(run, {})
            except (urllib.error.URLError, ConnectionError):
                pass
            if series.keys() <= tags.keys():
                break
            time.sleep(0.5)
        assert series.keys() <= tags.keys(), f"the server shows {sorted(tags)}"
        for tag, wanted in series.items():
            rows = get("scalars/scalars?" + urllib.parse.urlencode({"run": run, "tag": tag}))
            number = lambda v: float(v) if not isinstance(v, str) else math.nan
            compare(run, tag, {step: number(value) for _, step, value in rows}, wanted)
        assert get("text/tags")[run], "the server shows no texts"
    finally:
        server.terminate()
        server.wait()


def main():
    folder, metrics_file = sys.argv[1:]
    series = expected(metrics_file)
    run, texts = by_event_reader(folder, series)
    by_server(folder, series, run)
    points = sum(map(len, series.values()))
    print(f"run `{run}`: {len(series)} scalar tags, {points} points, {texts} texts: equal")


main()
