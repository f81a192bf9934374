"""The version of egpo."""

__version__ = "0.1.0"
