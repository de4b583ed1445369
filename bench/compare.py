#!/usr/bin/env python3
"""Runs benchmarks in turn (A B C A B C ...) and prints medians, ratios and shares of the limits.

    compare.py [--rounds 5] [--save DIR] \\
        'calla bench -m qwen --prefill 512,2048 --decode 512 --json' \\
        'llama-bench -m model.gguf -p 512,2048 -n 0 -o json;
         llama-bench -m model.gguf -p 0 -n 64 -d 512 -o json'

Each command is a line for the shell and a fresh process every time, and they take turns, so that
what the machine does meanwhile meets all. What it prints may be several reports after each other:
of calla bench (`--json`) and of llama-bench (`-o json`); which, the reports themselves tell. The
last command is the peer that the others are divided by, round by round.

Points are matched by kind, tokens and sequences: llama-bench's -p is a prompt, its -n with depth -d
is decode at that context (depth 0, where calla has at least one token, counts as context 1).

The limits are those that calla bench measures: of each round the highest that any of the commands
reports. A peer that reports none is held against them as if it moved the same bytes and did the
same operations a token. No packages are needed.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys


class Measured:
    """What one command said in one round: rates and limits, in tokens/s by point."""

    def __init__(self, reports):
        self.rates, self.limits, self.programs = {}, {}, []
        for report in reports:
            if isinstance(report, dict):
                self.take_calla(report)
            else:
                self.take_llama_bench(report)

    def add(self, point, rate, fraction=None):
        if point in self.rates:
            sys.exit(f"{point_text(point)} came twice from one command")
        self.rates[point] = rate
        if fraction:
            self.limits[point] = rate / fraction

    def add_program(self, text):
        if text not in self.programs:
            self.programs.append(text)

    def take_calla(self, report):
        for p in report["prefill"]:
            self.add(("prefill", p["tokens"], 1), p["tokens_per_second"],
                     p["fraction_of_matrix_rate"])
        for p in report["decode"]:
            self.add(("decode", p["context"], p["sequences"]), p["tokens_per_second"],
                     p["fraction_of_read_bandwidth"])
        self.add_program(f"calla {report['version']}, {report['backend']} {report['isa']}, "
                         f"{report['threads']} threads, {report['weights_bytes'] / 1e9:.2f} GB")

    def take_llama_bench(self, tests):
        for t in tests:
            depth = t.get("n_depth", 0)
            if t["n_prompt"] and not t["n_gen"] and not depth:
                self.add(("prefill", t["n_prompt"], 1), t["avg_ts"])
            elif t["n_gen"] and not t["n_prompt"]:
                self.add(("decode", max(depth, 1), 1), t["avg_ts"])
            self.add_program(f"llama-bench {t.get('build_commit', '?')}, "
                             f"{t.get('model_type', '?')}, {t.get('n_threads', '?')} threads, "
                             f"{t.get('model_size', 0) / 1e9:.2f} GB")


def point_text(point):
    kind, tokens, sequences = point
    return f"{kind} {tokens}" + (f", {sequences} sequences" if sequences > 1 else "")


def read_reports(text, command):
    reports, decoder, at = [], json.JSONDecoder(), 0
    text = text.strip()
    while at < len(text):
        try:
            report, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as e:
            sys.exit(f"not JSON ({e}): {command}")
        reports.append(report)
        while at < len(text) and text[at].isspace():
            at += 1
    if not reports:
        sys.exit(f"no output: {command}")
    return reports


def run(command):
    done = subprocess.run(["sh", "-ec", command], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode}: {command}")
    return read_reports(done.stdout, command)


def save(stem, reports):
    for k, report in enumerate(reports):
        with open(f"{stem}.json" if k == 0 else f"{stem}-{k + 1}.json", "w") as f:
            json.dump(report, f, indent=1)


def run_all(args, names):
    """[rounds] of {name: Measured}."""
    rounds = []
    for i in range(args.rounds):
        rounds.append({})
        for name, command in zip(names, args.commands):
            print(f"round {i + 1} of {args.rounds}: {name}", file=sys.stderr)
            reports = run(command)
            if args.save:
                save(os.path.join(args.save, f"{i + 1:02}{name}"), reports)
            rounds[i][name] = Measured(reports)
    return rounds


def spread(values):
    return 100 * (max(values) - min(values)) / statistics.median(values)


def points_of(rounds, names):
    """Every point with the commands that have it, which must have it in every round."""
    points = {}
    for name in names:
        for point in rounds[0][name].rates:
            points.setdefault(point, []).append(name)
        for r in rounds:
            for point in sorted(r[name].rates.keys() ^ rounds[0][name].rates.keys()):
                sys.exit(f"{name} has {point_text(point)} in some rounds only")
    return points


def print_rates(rounds, names, points):
    peer = names[-1]
    quotients = "".join(f" {name + ' / ' + peer:>7}" for name in names[:-1])
    columns = "".join(f" {name:>10}" for name in names)
    print(f"\nmedian tokens/s of {len(rounds)} (spread)\n")
    print(f"{'':8} {'tokens':>7}{columns}{quotients}")
    for point, having in points.items():
        rates = {name: [r[name].rates[point] for r in rounds] for name in having}
        line = f"{point[0]:8} {point[1]:7}"
        for name in names:
            line += f" {statistics.median(rates[name]):10.2f}" if name in rates else f" {'-':>10}"
        for name in names[:-1]:
            both = name in rates and peer in rates
            line += (f" {statistics.median(a / b for a, b in zip(rates[name], rates[peer])):7.2f}"
                     if both else f" {'-':>7}")
        line += "   (" + ", ".join(f"{spread(rates[name]):.1f} %" for name in having) + ")"
        print(line + (f", {point[2]} sequences" if point[2] > 1 else ""))


def print_shares(rounds, names, points):
    """Per cent of the highest limit of the round."""
    lines = []
    for point, having in points.items():
        limits = [max((m.limits[point] for m in r.values() if point in m.limits), default=None)
                  for r in rounds]
        if None in limits:
            continue
        line = f"{point[0]:8} {point[1]:7}"
        for name in names:
            shares = [100 * r[name].rates[point] / limit for r, limit in zip(rounds, limits)
                      if name in having]
            line += f" {statistics.median(shares):10.1f}" if shares else f" {'-':>10}"
        lines.append(line + f" {statistics.median(limits):10.1f} tokens/s")
    if lines:
        print("\nper cent of the limit measured in the same round\n")
        print(f"{'':8} {'tokens':>7}" + "".join(f" {name:>10}" for name in names) +
              f" {'limit':>10}")
        print("\n".join(lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", metavar="DIR", help="keep every report there: 01A.json, 01A-2.json, ...")
    parser.add_argument("commands", nargs="+", metavar="COMMAND", help="two to eight; the last is "
                        "the peer")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    if not 2 <= len(args.commands) <= 8:
        parser.error("give two to eight commands")
    if args.save:
        os.makedirs(args.save, exist_ok=True)
    names = "ABCDEFGH"[:len(args.commands)]
    rounds = run_all(args, names)
    for name, command in zip(names, args.commands):
        print(f"{name}: {command}")
        for program in rounds[0][name].programs:
            print(f"   {program}")
    points = points_of(rounds, names)
    print_rates(rounds, names, points)
    print_shares(rounds, names, points)
    if not any(names[-1] in having and len(having) > 1 for having in points.values()):
        sys.exit("the peer has no point of the others")


if __name__ == "__main__":
    main()
