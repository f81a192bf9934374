"""Compare runs: is the comparison fair, is there a difference, and how small a difference could be detected? No torch.

Enters: run folders, evaluation files, or plain scores. Leaves: a `Comparison` with one verdict per pair of conditions.

`compared_models`   reads runs and plain models, chooses the evaluation that all share
`conditions`        groups runs that differ in their seed only
`fairness`          what differs besides the factor, and notes for the reader
`values`            the metric of each run and problem
`mcnemar`, `seeds`  the tests: one run per condition (over problems), several (over seeds and problems)
`outcome`           what every test returns, and Student's t
`result`            Holm's correction for multiple tests, verdicts
`comparison`        all of the above in order: `compare_runs`
`scores`            the same for published figures without responses
`outputs`           JSON, Markdown, CSV
`results_table`     `egpo results`: one table of all runs in a folder
"""
