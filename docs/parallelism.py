"""Plot docs/parallelism.svg: the path from a loss on [B, L] tensors to a gradient on any mesh.

Usage: python docs/parallelism.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

REPLICATED, SHARDED, COMPONENT = "#e8eef7", "#fdf1dc", "#dff2e1"
"""Colours: replicated on every rank, sharded over ranks, code of a loss component."""
STEPS = [
    (REPLICATED, "global batch: ids, masks, scalars", "replicated on every rank, on the CPU"),
    (REPLICATED, "aggregation: loss_weight [N, L]", "normalized over the whole optimizer step"),
    (SHARDED, "complete groups, balanced by tokens", "data parallel: a share of the rows per rank"),
    (SHARDED, "packed micro-batches", "shared prompts stored once; the same number on every rank"),
    (SHARDED, "layers", "FSDP 2 gathers; TP ranks split matrices; PP ranks split layers"),
    (
        SHARDED,
        "head: hidden states -> log-prob, entropy",
        "vocabulary split over TP ranks; two reductions",
    ),
    (
        COMPONENT,
        "loss: [B, L] tensors -> [B, L] tensor",
        "ten lines; on the last PP stage, the same on all TP ranks",
    ),
    (SHARDED, "sum(loss_weight * loss), backward", "a plain sum over chunks, micro-batches, ranks"),
    (REPLICATED, "gradient norm, clipping, optimizer step", "metrics: (sum, count) summed over ranks"),
]


def main() -> None:
    plt.switch_backend("Agg")
    plt.rcParams |= {"svg.hashsalt": "titanrl", "font.size": 10}  # For reproducible files.
    figure, axes = plt.subplots(figsize=(8.2, 7.0))
    axes.axis("off")
    axes.set_xlim(0, 10)
    axes.set_ylim(-len(STEPS) - 0.6, 0.5)
    for index, (colour, name, note) in enumerate(STEPS):
        box = FancyBboxPatch(
            (0.1, -index - 0.32), 4.4, 0.64, boxstyle="round,pad=0.02", fc=colour, ec="#555555"
        )
        axes.add_patch(box)
        axes.text(2.3, -index, name, ha="center", va="center")
        axes.text(4.75, -index, note, ha="left", va="center", color="#444444", fontsize=9)
        if index:
            axes.annotate(
                "",
                (2.3, -index + 0.34),
                (2.3, -index + 0.66),
                arrowprops={"arrowstyle": "->", "color": "#555555"},
            )
    for index, (colour, name) in enumerate(
        ((REPLICATED, "replicated"), (SHARDED, "sharded over ranks"), (COMPONENT, "a loss component"))
    ):
        axes.add_patch(
            FancyBboxPatch(
                (0.1 + 3.3 * index, -9.3), 0.3, 0.2, boxstyle="round,pad=0.02", fc=colour, ec="#555555"
            )
        )
        axes.text(0.6 + 3.3 * index, -9.2, name, va="center", fontsize=9)
    figure.tight_layout()
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
