"""Trains experiments one after the other, each on its own mesh.

Usage: runs_worker.py FOLDER: holds runs.json ({name: [file, overrides]}), gets rank-<r>.pt, {name: run}.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

import titanrl.engine
from titanrl.config import load
from titanrl.report import recorder
from titanrl.training.run import train

if __name__ == "__main__":
    titanrl.engine.set_threads = lambda: torch.set_num_threads(1) or 1
    recorder.plot = lambda *_: None  # Drawing takes longer than the training.
    folder = Path(sys.argv[1])
    runs = json.loads((folder / "runs.json").read_text())
    found = {name: str(train(load(file, overrides))) for name, (file, overrides) in runs.items()}
    torch.save(found, folder / f"rank-{int(os.environ['RANK'])}.pt")
    torch.distributed.destroy_process_group()
