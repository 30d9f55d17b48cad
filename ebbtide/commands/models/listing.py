"""``ebbtide list``: lists the models on this machine."""

from __future__ import annotations

import argparse
import time

from ..table import duration_text, print_table, size_text
from .local_models import local_models

HEAD = ("NAME", "SIZE", "KIND", "USED")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``ebbtide list``."""
    parser.add_argument("--names", action="store_true", help="print only the names, one per line")


def run(arguments: argparse.Namespace) -> int:
    """Print one line per model. Returns 0."""
    models = local_models()
    if arguments.names:
        for model in models:
            print(model.name)
        return 0
    now = time.time()
    rows = [
        (model.name, size_text(model.num_bytes), model.kind, f"{duration_text(now - model.used)} ago")
        for model in models
    ]
    if rows:
        print_table(HEAD, rows)
    else:
        print("No model is downloaded. `ebbtide pull smollm2` downloads a small one.")
    return 0
