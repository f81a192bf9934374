"""verl's configuration as a stored table, so that a recipe can be checked without verl.

`defaults.json`: every key and default of the supported verl; `known.py` reads it; `snapshot.py` writes it.
"""
