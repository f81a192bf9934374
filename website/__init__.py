"""The documentation site: its generated pages, its figures and what MkDocs does with the pages.

- `pages.py` writes the generated pages, from `cli_page.py` (typer's definitions), `config_page.py` (the pydantic
  sections), `task_pages.py` (the tasks and their judges) and `egpo.runs.metrics_page`.
- `figures.py` draws the figures of the algorithm pages from finished runs.
- `evidence/` makes the committed runs in docs/evidence into docs/results.md.
- `hooks.py` is called by MkDocs: navigation and links. `theme/` has the style sheet.
"""
