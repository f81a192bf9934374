"""From one recipe to one verdict: prepare, probe, train, merge, evaluate, report."""
