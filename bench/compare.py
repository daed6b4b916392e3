"""Runs engines one after the other on the same work and prints one table with ratios.

    python bench/compare.py --spec specs.json [--only a,b] [--cases decode,batch64] [--reps 3] [--base NAME]
                            [--out results.json] [--logs DIR]

The spec is a list of {"name", "python", "adapter", "model", "opts": {}, "env": {}, "cases": "", "reps": 3}; `python` is
the interpreter of the engine's own virtual environment. Paths may be relative to the caller's folder and name variables
of the environment ($MODELS). Names may be "model/engine": ratios are then taken within one model. Results are merged
into --out, so that engines can be run on different days and still share a table; but machines are noisy, and only
ratios from one run mean much.

Peak memory is the largest sum over the process tree of what each process held, read every 0.3 s.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from workloads import CASES  # noqa: E402

POLL_S = 0.3
Results = dict[str, dict[str, Any]]


def process_tree(pid: int) -> list[int]:
    found, todo = [], [pid]
    while todo:
        current = todo.pop()
        found.append(current)
        try:
            for children in Path(f"/proc/{current}/task").glob("*/children"):
                todo += [int(child) for child in children.read_text().split()]
        except OSError:  # it has ended meanwhile
            pass
    return found


def resident_mib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS:")), 0)


def watch(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """Wait for a process. Returns the peak of its tree's memory in MiB, and how many processes the tree had."""
    peak, seen = 0, set()
    while process.poll() is None:
        tree = process_tree(process.pid)
        seen.update(tree)
        peak = max(peak, sum(resident_mib(pid) for pid in tree))
        time.sleep(POLL_S)
    return peak, len(seen)


def expand(text: str) -> str:
    """Replace $NAME; a variable that is not set ends the program."""
    expanded = os.path.expandvars(text)
    if "$" in expanded:
        raise SystemExit(f"{text!r} names a variable that is not set; see bench/README.md")
    return expanded


def run(spec: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    own_env = {name: expand(str(value)) for name, value in spec.get("env", {}).items()}
    env = {**os.environ, **own_env, "HF_HUB_OFFLINE": "1"}
    python, model = expand(spec["python"]), expand(spec["model"])
    log = Path(args.logs) / f"{spec['name'].replace('/', '_')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [python, str(HERE / "run_one.py"), "--adapter", spec["adapter"], "--model", model]
        command += ["--cases", spec.get("cases", args.cases), "--reps", str(spec.get("reps", args.reps))]
        command += ["--budget-s", str(args.budget_s), "--out", out.name]
        for name, value in spec.get("opts", {}).items():
            command += ["--opt", expand(f"{name}={value}")]
        env["BENCH_T0"] = str(time.time())
        with log.open("w") as stream:
            process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, env=env)
            peak_mib, num_processes = watch(process)
        try:
            results = json.loads(Path(out.name).read_text())
        except ValueError:
            return {"error": f"exit status {process.returncode}, see {log.name}", "cases": {}}
    results.update(model=Path(model).name, peak_rss_mib=peak_mib, processes=num_processes)
    return results


def cell(found: dict[str, Any] | None, base: dict[str, Any] | None) -> str:
    """One case of one engine: rate, half the spread, ratio to the base."""
    if not found:
        return "-"
    if "error" in found:
        return "failed"
    spread = f"±{found['spread'] * 50:.0f}%" if len(found["seconds"]) > 1 else "(1 run)"
    ratio = f" = {found['rate'] / base['rate']:.2f}x" if base and "rate" in base and base is not found else ""
    return f"{found['rate']:.1f} {spread}{ratio}"


def table(results: Results, base_name: str) -> str:
    def group(name: str) -> str:
        return name.rpartition("/")[0]

    head = ["engine", *(f"{name} tok/s" for name in CASES), "first token s", "peak MiB"]
    rows = [head, ["---"] * len(head)]
    for name, found in results.items():
        if "error" in found:
            rows.append([name, found["error"], *[""] * (len(head) - 2)])
            continue
        base = results.get(base_name, {}) if group(name) == group(base_name) else {}
        cells = [cell(found["cases"].get(case), base.get("cases", {}).get(case)) for case in CASES]
        rows.append([name, *cells, f"{found['first_token_s']:.1f}", str(found["peak_rss_mib"])])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def merge(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """Keep the cases that were not measured this time."""
    if old and "error" not in new and "error" not in old:
        new["cases"] = {**old["cases"], **new["cases"]}
    return new


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare engines on the same work.")
    parser.add_argument("--spec", required=True, metavar="FILE")
    parser.add_argument("--only", default="", metavar="NAMES")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--budget-s", type=float, default=60, help="start no further repetition after this long")
    parser.add_argument("--base", default="", metavar="NAME", help="the engine that ratios are against")
    parser.add_argument("--out", default="results.json", metavar="FILE")
    parser.add_argument("--logs", default="logs", metavar="DIR")
    parser.add_argument("--table-only", action="store_true")
    args = parser.parse_args()
    out = Path(args.out)
    results: Results = json.loads(out.read_text()) if out.exists() else {}
    for spec in [] if args.table_only else json.loads(Path(args.spec).read_text()):
        name = spec["name"]
        if args.only and name not in args.only.split(","):
            continue
        print("==", name, flush=True)
        results[name] = merge(results.get(name), run(spec, args))
        out.write_text(json.dumps(results, indent=1), encoding="utf-8")
        print(table({name: results[name]}, ""), flush=True)
    print(table(results, args.base))


if __name__ == "__main__":
    main()
