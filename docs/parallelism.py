"""Draws docs/parallelism.svg: how a loss on [B, L] numbers becomes a gradient on any mesh.

Usage: python docs/parallelism.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

SAME, SHARED, AUTHOR = "#e8eef7", "#fdf1dc", "#dff2e1"
"""What is the same on every rank, what is cut over ranks, what the author of a loss writes."""
STEPS = [
    (SAME, "global batch: ids, masks, scalars", "the same on every rank, on the CPU"),
    (SAME, "aggregation: loss_weight [N, L]", "normalised over the whole optimizer step"),
    (SHARED, "whole groups, balanced by tokens", "data parallel: a share of the rows a rank"),
    (SHARED, "micro-batches of distinct tokens", "packed, prompts shared; as many on every rank"),
    (SHARED, "layers", "FSDP 2 gathers, tensor ranks split matrices, pipeline ranks split layers"),
    (
        SHARED,
        "head: hidden states -> log-prob, entropy",
        "vocabulary split over tensor ranks; two reductions",
    ),
    (AUTHOR, "loss: [B, L] numbers -> [B, L] numbers", "ten lines; on the last stage, equal on tensor ranks"),
    (SHARED, "sum(loss_weight * loss), backward", "a plain sum: over chunks, micro-batches, ranks"),
    (SAME, "one norm, one clip, one step; metrics", "(sum, count) of each metric added over ranks"),
]


def main() -> None:
    plt.switch_backend("Agg")
    plt.rcParams |= {"svg.hashsalt": "titanrl", "font.size": 10}  # The same bytes from every run.
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
        ((SAME, "the same on every rank"), (SHARED, "cut over ranks"), (AUTHOR, "what a loss author writes"))
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
