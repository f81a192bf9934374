"""Boards (`egpo board`): the fair comparison of many methods, as methods x tasks x seeds.

Enters: a board file. Leaves: a run folder per cell, `board.json`, `board.md`, `board.html` and a figure per task.

`board_file`   the board file: tasks, methods, seeds, baselines; every fault at once
`cells`        the cells (task, method, seed) as experiments; what is missing; checks before the first step; runs them
`judgement`    the statistics: accuracies, differences from the baselines, one correction over the board; `board.json`
`stored_board` a board that is kept as evidence: runs without weights and texts, and why others are missing
`board_page`   the page, as Markdown and as HTML
`board_chart`  the learning curves of a task, as SVG
"""
