"""Talks to a hub: predicts, before any weights arrive, the model card that a model would have here.

The prediction uses the model's configuration and file sizes; for a GGUF model, it uses the header
of its file. `listed_card` computes the card and is pure.
"""

from worker.pulling.forecast.forecasting import Shelving, forecast_of, gguf_forecast_of
from worker.pulling.forecast.listed_card import listed_card, listed_tensors

__all__ = ["Shelving", "forecast_of", "gguf_forecast_of", "listed_card", "listed_tensors"]
