"""The whole idea in minutes, from the package alone: a tiny model, three estimators, one report."""
