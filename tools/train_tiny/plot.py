"""Draws the loss curve of models/tiny: python plot.py CURVE_CSV HELDOUT_CSV OUT_PNG"""
import csv
import sys

import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt


def read(path):
    with open(path, encoding="utf-8") as file:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]


def main():
    curve, held = read(sys.argv[1]), read(sys.argv[2])
    fig, axis = plt.subplots(figsize=(6, 3.4), dpi=90)
    axis.plot([r["tokens"] / 1e6 for r in curve], [r["loss"] for r in curve], lw=1, label="training")
    axis.plot([r["tokens"] / 1e6 for r in held], [r["loss_bf16"] for r in held], "o-", ms=3, lw=1, label="held out, bf16")
    axis.plot([r["tokens"] / 1e6 for r in held], [r["loss_4bit"] for r in held], "s--", ms=3, lw=1, label="held out, 4 bits")
    start = min(r["tokens"] for r in curve if r["quantised"] and r["tokens"] > 1e8)
    axis.axvline(start / 1e6, color="grey", lw=0.8, ls=":")
    axis.text(start / 1e6 + 5, 6, "4-bit weights\nfrom here", fontsize=8, color="grey")
    axis.set(xlabel="million tokens", ylabel="loss (nats per token)", yscale="log", ylim=(0.25, 9))
    axis.legend(fontsize=8)
    fig.tight_layout()
    fig.savefig(sys.argv[3])


if __name__ == "__main__":
    main()
