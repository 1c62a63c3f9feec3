"""Reports of runs: tables, plots and one self-contained HTML page."""

from anybit.report.page import write_report
from anybit.report.read import read_runs
from anybit.report.tables import Table, accuracy_table, config_differences, grid_table
from anybit.training.reading import RunRecord

__all__ = ["RunRecord", "Table", "accuracy_table", "config_differences", "grid_table", "read_runs", "write_report"]
