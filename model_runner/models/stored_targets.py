"""The names under which a checkpoint stores the weights of the embedding and the output layer, which may be tied."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checkpoint.weight_loading import check_shapes
from ..checkpoint.weights import Checkpoint

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def has_own_head(checkpoint: Checkpoint) -> bool:
    """Return True if the checkpoint has an output layer that differs from the embedding to which it should be tied."""
    if checkpoint.gguf is not None or not {HEAD, EMBEDDING} <= checkpoint.safetensors.stored.keys():
        return False
    head, embedding = checkpoint.safetensors.tensor(HEAD), checkpoint.safetensors.tensor(EMBEDDING)
    return not torch.equal(head.to(embedding.dtype), embedding)


def check_stored(targets: dict[str, Tensor], checkpoint: Checkpoint) -> list[str]:
    """Return the names under which the checkpoint stores ``targets``. Raises StartupError if the shapes differ.

    Call it with targets on the device "meta" before memory is allocated, because a wrong size in the configuration
    could require any amount.
    """
    stored = stored_targets(targets, checkpoint)
    check_shapes(stored, checkpoint.shapes(stored), name=checkpoint.files.name)
    return list(stored)


def stored_targets(targets: dict[str, Tensor], checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return the targets by the tensor names of a checkpoint, which may store tied weights under either name.

    targets: Hugging Face tensor name → target.
    """
    targets = dict(targets)
    if checkpoint.gguf is None and HEAD not in targets:
        stored = checkpoint.safetensors.stored
        if EMBEDDING not in stored and HEAD in stored:
            targets[HEAD] = targets.pop(EMBEDDING)
    return targets
