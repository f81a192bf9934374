"""Run folders in, one self-contained HTML page out. No torch."""

from egpo.reports.report import render_report, write_report

__all__ = ["render_report", "write_report"]
