"""Probe a model on its training problems before training: is there a signal, and how large must groups be?

Enters: a recipe, or a model and a task. Leaves: `evals/probe.json` with figures, forecasts and advice.

`subject`    what is probed: config, model, and the folder for the outcome
`probe`      draws training problems, samples and judges responses, sums up
`forecast`   the share of groups of 2 to 64 responses whose rewards will differ
`findings`   figures against thresholds, with advice, and the recommended group size
`store`      writes the outcome as JSON, the responses, and a picture as SVG
`keep`       writes the problems in a range of pass rates as prepared data, with a control set
"""
