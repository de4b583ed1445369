#!/usr/bin/env python3
"""Draws tokens per second and per cent of the machine's limit over context, from the JSON files of
`calla bench --json`. Needs matplotlib.

    plot.py -o bench.png run1.json [LABEL=run2.json ...]
"""
import argparse
import json
import os

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

KINDS = (("prefill", "tokens", "fraction_of_matrix_rate", "matrix rate"),
         ("decode", "context", "fraction_of_read_bandwidth", "read bandwidth"))


def read_runs(names):
    for name in names:
        label, _, path = name.rpartition("=") if not os.path.exists(name) else ("", "", name)
        with open(path) as f:
            run = json.load(f)
        yield label or f"{os.path.basename(run['model'] or path)}, {run['isa']}", run


def draw(axes, points, x, y, label, scale=1.0):
    axes.plot([p[x] for p in points], [scale * p[y] for p in points], marker="o", label=label)


def tokens_text(n, _=None):
    return f"{n / 1024:g}K" if n >= 1024 else f"{n:g}"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="bench.png")
    parser.add_argument("runs", nargs="+", metavar="[LABEL=]FILE")
    args = parser.parse_args()
    figure, grid = plt.subplots(2, 2, figsize=(11, 7), sharex="col")
    for label, run in read_runs(args.runs):
        for column, (kind, x, fraction, _) in enumerate(KINDS):
            points = sorted(run[kind], key=lambda p: p[x])
            draw(grid[0][column], points, x, "tokens_per_second", label)
            draw(grid[1][column], points, x, fraction, label, 100.0)
    for column, (kind, _, _, limit) in enumerate(KINDS):
        grid[0][column].set_title(kind)
        grid[0][column].set_ylabel("tokens/s")
        grid[1][column].set_ylabel(f"% of measured {limit}")
        grid[1][column].set_xlabel("prompt tokens" if kind == "prefill" else "context, tokens")
        for axes in (grid[0][column], grid[1][column]):
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(tokens_text)
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
    grid[0][0].legend()
    figure.tight_layout()
    figure.savefig(args.output, dpi=120)


if __name__ == "__main__":
    main()
