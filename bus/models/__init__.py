"""The contents of files of models and of operators: model cards, LoRA adapters, embedding models,
folders of models, tasks and clients.

Several services read these files, so the rules stand here once. Nothing of this room crosses a
wire: it imports `bus.wire`, and `bus.wire` never imports it. The door names modules and rooms,
which load alone; a room inside has its own door.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bus.models import cards, embedding_models, held_models, lora, model_folders, tasks

__all__ = ["cards", "embedding_models", "held_models", "lora", "model_folders", "tasks"]
