"""Talks to a hub: what a pull would bring, before any weights come: the card that the model would
have here, made of its configuration and the sizes of its files.

`listed_card` makes the card, and is pure.
"""

from worker.pulling.forecast.forecasting import Shelving, forecast_of
from worker.pulling.forecast.listed_card import listed_card, listed_tensors

__all__ = ["Shelving", "forecast_of", "listed_card", "listed_tensors"]
