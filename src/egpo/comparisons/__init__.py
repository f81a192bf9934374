"""The comparison of runs: is it fair, which conditions differ, what is the smallest detectable difference? No torch.

In: run folders, evaluation files, or plain scores. Out: a `Comparison` with one verdict per pair of conditions.

`compared_models`   reads runs and plain models (not trained by a run), chooses the evaluation that all share
`conditions`        groups runs that differ only in their seed
`fairness`          differences besides the factor (the setting under comparison), and notes for the reader
`values`            the compared metric of each run and problem
`mcnemar`, `seeds`  the tests: over problems (one run per condition), over seeds and problems (several runs)
`paired_seeds`      the test of boards: methods with the same seeds, paired by seed and problem
`outcome`           the result type of all tests, and Student's t
`result`            Holm's correction for multiple tests, and the verdicts
`comparison`        `compare_runs`, which calls all of the above in order
`scores`            comparison of published scores, without responses
`outputs`           JSON, Markdown, CSV
`results_table`     `egpo results`: one table of all runs in a folder
"""
