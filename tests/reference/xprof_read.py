"""Opens a profile of ours with the public `xprof` package (pip install xprof) and checks what its tools make of it.

Usage: xprof_read.py RUN_FOLDER/tensorboard
"""

import glob
import json
import sys

from xprof.convert import raw_to_tool_data

OPERATIONS = {"linear.forward", "linear.backward_input", "linear.backward_weight", "attention.forward", "attention.backward",
              "rms_norm.forward", "glu.backward", "rope", "cross_entropy.logits", "optimizer.update"}


def tool(paths, name):
    data, _ = raw_to_tool_data.xspace_to_tool_data(paths, name, {})
    return json.loads(data)


def rows(table):
    names = [column["id"] for column in table["cols"]]
    return [dict(zip(names, (cell["v"] for cell in row["c"]))) for row in table["rows"]]


def main():
    paths = sorted(glob.glob(sys.argv[1] + "/plugins/profile/*/*.xplane.pb"))
    assert paths, "no profile in " + sys.argv[1]

    events = [event for event in tool(paths, "trace_viewer")["traceEvents"] if event.get("ph") == "X"]
    steps = sorted({event["name"] for event in events if event["name"].startswith("step ")})
    layers = sorted({event["name"] for event in events if event["name"].startswith("layer.")})
    print("trace viewer:", len(events), "events;", ", ".join(steps + layers))
    assert steps and any("forward" in layer for layer in layers) and any("backward" in layer for layer in layers)

    statistics = rows(tool(paths, "framework_op_stats")[0])
    times = {row["operation"]: row["total_time"] for row in statistics}
    for name, time in sorted(times.items(), key=lambda item: -item[1])[:12]:
        print(f"  {name:36} {time / 1e3:10.2f} ms")
    missing = {name for name in OPERATIONS if not any(name in operation for operation in times)}
    assert not missing, f"operations that xprof doesn't know: {missing}"

    analysis = tool(paths, "input_pipeline_analyzer")
    numbers = [row["stepnum"] for table in analysis for row in (rows(table) if table["rows"] else []) if "stepnum" in row]
    print("input pipeline: steps", ", ".join(map(str, numbers)))
    assert len(numbers) == len(steps), "every step has a row"

    overview = tool(paths, "overview_page")
    averages = [table["p"]["steptime_ms_average"] for table in overview if "steptime_ms_average" in table.get("p", {})]
    print("overview: average step", averages, "ms")
    assert averages and float(averages[0]) > 0, "the overview has a step time"
    print("ok")


if __name__ == "__main__":
    main()
