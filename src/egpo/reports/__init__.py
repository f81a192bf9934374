"""Runs as one HTML page that loads nothing from a network, or as a page that follows a run. No torch.

Enters: run folders and `compare*.json` files. Leaves: one `report.html`, or a local server.

`report`         reads everything, fills the page within its budget of bytes, writes it
`curves`         the runs (`StoredRun` with a colour) and their metrics by step
`evaluations`    accuracy, mean score and pass@k with intervals
`verdict`        the opening: each run against its base model, with interval and p-value
`overview`       the tables: progress of each run, health warnings, settings that differ, provenance
`comparison`     verdicts of `egpo compare`
`charts`         the data of the charts; which metrics have one: `runs/metric_table.py`
`pass_rates`     histogram of a probe
`responses`      which rollouts and evaluation responses are included; as JSON: `response_json`,
                 and of episodes `episode_json`
`page`           puts template, style and scripts of `web/` together
`live`           `egpo report --live`: serves the page and tells it when a run has new data
"""

from egpo.reports.report import render_report, write_report

__all__ = ["render_report", "write_report"]
