"""BFCL, the Berkeley function-calling leaderboard, on any checkpoint or server, by its official evaluator."""
