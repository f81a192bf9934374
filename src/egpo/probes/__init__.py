"""The probe of a model on its training problems before training: is there a learning signal, and which group size?

In: a recipe, or a model and a task. Out: `evals/probe.json` with metrics, forecasts and advice.

`subject`    what is probed: config, model, and the folder for the results
`probe`      draws training problems, samples and judges responses, computes the results
`forecast`   the share of groups of 2 to 64 responses whose rewards will differ
`findings`   metrics compared with thresholds, with advice, and the recommended group size
`store`      writes the results as JSON, the responses as JSON lines, and a plot as SVG
`keep`       writes the problems in a range of pass rates as prepared data, with a control set
"""
