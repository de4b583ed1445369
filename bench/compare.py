#!/usr/bin/env python3
"""Runs `calla bench --json` and a peer in turn (A B A B ...) and prints medians and ratios.

    compare.py [--rounds 5] [--save DIR] 'calla bench -m qwen --prefill 512 --decode 512 --json' \\
               'llama-bench -m model.gguf -p 512 -n 64 -d 512 -o json'

Each run is a fresh process, and the two take turns, so that what the machine does meanwhile meets
both. Either command may be calla bench or llama-bench (`-o json`): what is on standard output
tells. Points are matched by kind and number of tokens: llama-bench's -p is a prompt, its -n with
depth -d is decode at that context. No packages are needed.
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys


def points_of_calla(report):
    points = {}
    for p in report["prefill"]:
        points["prefill", p["tokens"], 1] = p["tokens_per_second"]
    for p in report["decode"]:
        points["decode", p["context"], p["sequences"]] = p["tokens_per_second"]
    return points


def points_of_llama_bench(tests):
    points = {}
    for t in tests:
        depth = t.get("n_depth", 0)
        if t["n_prompt"] and not t["n_gen"] and not depth:
            points["prefill", t["n_prompt"], 1] = t["avg_ts"]
        elif t["n_gen"] and not t["n_prompt"]:
            points["decode", depth, 1] = t["avg_ts"]
    return points


def run(command):
    done = subprocess.run(shlex.split(command), stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode}: {command}")
    try:
        report = json.loads(done.stdout)
    except json.JSONDecodeError as e:
        sys.exit(f"not JSON ({e}): {command}")
    return report


def points_of(report):
    return points_of_calla(report) if isinstance(report, dict) else points_of_llama_bench(report)


def spread(values):
    return 100 * (max(values) - min(values)) / statistics.median(values)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", metavar="DIR", help="keep every run's JSON there")
    parser.add_argument("a", help="a command line")
    parser.add_argument("b", help="the peer's")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    if args.save:
        os.makedirs(args.save, exist_ok=True)
    seen = {"A": {}, "B": {}}
    for i in range(args.rounds):
        for name, command in (("A", args.a), ("B", args.b)):
            print(f"round {i + 1} of {args.rounds}: {name}", file=sys.stderr)
            report = run(command)
            if args.save:
                with open(os.path.join(args.save, f"{i + 1:02}{name}.json"), "w") as f:
                    json.dump(report, f, indent=1)
            for point, rate in points_of(report).items():
                seen[name].setdefault(point, []).append(rate)
    print(f"A: {args.a}\nB: {args.b}\nmedian tokens/s of {args.rounds} (spread)\n")
    print(f"{'':8} {'tokens':>7} {'A':>10} {'B':>10} {'A / B':>7}")
    both = [p for p in seen["A"] if p in seen["B"]]
    for point in both:
        kind, tokens, sequences = point
        a, b = seen["A"][point], seen["B"][point]
        ratios = [x / y for x, y in zip(a, b)]
        print(f"{kind:8} {tokens:7} {statistics.median(a):10.2f} {statistics.median(b):10.2f}"
              f" {statistics.median(ratios):7.2f}   ({spread(a):.1f} %, {spread(b):.1f} %)"
              + (f", {sequences} sequences" if sequences > 1 else ""))
    for name, other in (("A", "B"), ("B", "A")):
        for point in seen[name]:
            if point not in seen[other]:
                print(f"only in {name}: {point[0]} {point[1]}")
    if not both:
        sys.exit("no point is in both")


if __name__ == "__main__":
    main()
