"""What the routes share. Plain references, set once when the application is built."""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide.config import ServerConfig
from ebbtide.errors import Rejected
from ebbtide.messages import RunnerInfo
from ebbtide.tokenizer_mgr.manager import TokenizerManager
from ebbtide.tokenizer_mgr.prompts import PromptReader

from .liveness import Liveness
from .metrics import FrontMetrics


@dataclass(frozen=True, slots=True)
class AppState:
    """created: Unix time in whole seconds at which the model was loaded."""

    config: ServerConfig
    model_name: str
    info: RunnerInfo
    manager: TokenizerManager
    prompts: PromptReader
    metrics: FrontMetrics
    liveness: Liveness
    created: int

    def check_model(self, name: str | None) -> None:
        """Raises Rejected unless ``name`` is the model served here, or left out."""
        if name is not None and name != self.model_name:
            raise Rejected(
                f"The model {name[:200]!r} does not exist here; this server has {self.model_name!r}.",
                status=404,
                kind="not_found_error",
                code="model_not_found",
                param="model",
            )
