"""Talks to a hub: forecasts a pull before any weights arrive: the card that the model would have
here, from its configuration and its file sizes.

`listed_card` makes the card, and is pure.
"""

from worker.pulling.forecast.forecasting import Shelving, forecast_of
from worker.pulling.forecast.listed_card import listed_card, listed_tensors

__all__ = ["Shelving", "forecast_of", "listed_card", "listed_tensors"]
