"""Forecasts of memory and time before a run, from a model's configuration alone: no weights, no network.

`forecasts.py` runs the package's own code on torch's meta device and counts; what is run how often, a method says.
"""

from gatewise.plan.accelerators import ACCELERATORS
from gatewise.plan.forecasts import Forecast, forecast

__all__ = ["ACCELERATORS", "Forecast", "forecast"]
