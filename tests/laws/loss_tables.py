"""Tables under which the laws try each loss: every name with its defaults, and options worth a law."""

from __future__ import annotations

from typing import Any, get_args

import titanrl
from titanrl.ops.dpo import Variant

Table = dict[str, Any]

OPTIONS: dict[str, list[Table]] = {
    "ppo_clip": [
        {"clip_low": 0.1, "clip_high": 0.28, "dual_clip": 1.5, "ratio_cap": 1.4},
        {"positive_nll": 0.3, "log_ratio_clamp": 0.2},
    ],
    "gspo": [{"clip_low": 0.05, "clip_high": 0.08, "log_ratio_clamp": 0.2}],
    "cispo": [{"clip_low": 0.2, "clip_high": 0.3}],
    "gmpo": [{"clip_low": 0.2, "clip_high": 0.1}],
    "dppo_tv": [
        {"low": 0.05, "high": 0.1, "ratio_cap": 1.2},
        {"low": 0.05, "high": 0.1, "symmetric": True, "penalty": 0.1},
    ],
    "dppo_kl": [{"low": 0.01, "high": 0.02}],
    "mirror_descent": [{"level": "token"}],
    "clip_cov": [{"fraction": 0.3, "cov_low": 0.02}],
    "kl_cov": [{"fraction": 0.3}],
    "value": [{"loss": "huber", "delta": 0.3, "clip": 0.1}],
    "bradley_terry": [{"center": 0.1, "use_margin": True}],
    "topk_distill": [
        {"direction": "reverse"},
        {"direction": "jsd", "tail": "ignore"},
        {"tail": "renormalize"},
    ],
    "dpo": [
        *({"variant": variant} for variant in get_args(Variant) if variant not in ("sigmoid", "exo_pair")),
        {"variant": "exo_pair", "label_smoothing": 0.1},
        {"divergence": "forward_kl"},
        {"divergence": "js", "label_smoothing": 0.1},
        {"divergence": "alpha", "alpha": 0.3},
        {"ld_alpha": 0.4},
        {"weighting": "wpo"},
        {"variants": ("sigmoid", "bco_pair"), "weights": (0.8, 0.2), "nll_coefficient": 1.0},
    ],
    "topr": [{"level": "token", "negative_weight": 0.5}, {"level": "mean", "sign": "reward"}],
    "fipo": [{"half_life": 2.0, "influence_low": 0.8, "ratio_cap": 1.4, "safety_ratio": 1.1}],
    "real": [{"tau": 0.2, "threshold": 0.5}],
    "gvpo": [{"beta": 0.5}],
    "iw_opd": [{"gamma": 2.0}],
    "prime_opd": [{"low": 0.02, "penalty": 0.1, "log_ratio_clamp": 0.2}],
    "log_linear_proximal": [{"clip_low": 0.05, "clip_high": 0.05, "cap": 1.1}],
    "sdar": [{"coefficient": 1.0, "gate": 1.0}],
    "ipo": [{"reduction": "sum"}],
    "simpo": [{"alpha": 0.5, "label_smoothing": 0.1}],
    "kto": [{"variant": "apo_zero"}],
}
"""Beside the defaults. A registered loss that can't be built without fields must have a table here."""


def tables() -> list[Table]:
    """Returns ``{name: ...} | fields`` for each loss: its defaults where it has them, then its options."""
    found = []
    for name in titanrl.names("loss"):
        try:
            titanrl.build("loss", {"name": name})
            found.append({"name": name})
        except titanrl.ConfigError:
            assert OPTIONS.get(name), f"loss {name!r} has required fields: give the laws a table"
        found += [{"name": name} | options for options in OPTIONS.get(name, [])]
    return found


def table_id(table: Table) -> str:
    return " ".join([table["name"], *(f"{key}={value}" for key, value in table.items() if key != "name")])
