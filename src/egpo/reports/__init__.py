"""Runs as one HTML page that loads nothing. No torch.

Enters: run folders and `compare*.json` files. Leaves: one `report.html`.

`report`        reads everything, fills the page, writes it
`curves`        the runs (`StoredRun` with a colour) and their metrics by step
`overview`      the tables: progress of each run, health warnings, settings that differ, provenance
`charts`        which metrics have a chart of their own; add one by adding a `Chart` to its table
`evaluations`   accuracy, mean score and pass@k with intervals
`comparison`    verdicts of `egpo compare`
`rollouts`      a selection of responses, compact and escaped
`pass_rates`    histogram of a probe
`page`          puts template, style and script of `web/` together
"""

from egpo.reports.report import render_report, write_report

__all__ = ["render_report", "write_report"]
