"""Updates: from rollouts and advantages to new weights.

    update.py          `update`: epochs, mini-batches, one optimizer step each; the metrics of an update
    micro_batches.py   rows into forward passes of a bounded number of tokens; smaller ones if memory runs out
    losses.py          the loss of a micro-batch: clipped surrogate, KL estimators, weights of tokens
    optimizer.py       AdamW with float32 masters; the learning-rate schedule
    reference.py       the policy that training started from, and its log-probabilities

Imports `local/models`; nothing of training. To add a KL estimator: a row in `losses.KL_ESTIMATORS`, and
its name in `Update.kl_estimator` (`config/sections/training.py`). To add an optimizer: `optimizer.py`, `Optimization`
in the same section file, its bytes per weight in `egpo/support.py`, and `translation.py` or `refusals.py` of verl.
"""
