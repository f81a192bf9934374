"""Patch for the processes of verl_plugin.py: each advantage stage runs twice, stock and with the plug-in."""

import time

from egpo.verl.imports import when_imported


def time_both(trainers):
    """Time verl's own advantage stage and the plug-in's, in alternating order. The step trains on the result of the
    second."""
    with_plugin = trainers.Fed._compute_advantage

    def stock(self, batch, metrics):
        algorithm, name = self.config.algorithm, self.config.algorithm.adv_estimator
        algorithm.adv_estimator = "grpo"
        try:
            return super(trainers.Fed, self)._compute_advantage(batch, metrics)
        finally:
            algorithm.adv_estimator = name

    def timed(self, batch, metrics):
        contenders = [("stock", stock), ("plugin", with_plugin)]
        for name, compute in contenders if self.global_steps % 2 else contenders[::-1]:
            start = time.perf_counter()
            computed = compute(self, batch, metrics)
            metrics[f"benchmark/{name}_s"] = time.perf_counter() - start
        return computed

    trainers.Fed._compute_advantage = timed


when_imported("egpo.verl.trainers", time_both)
