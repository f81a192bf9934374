"""The committed evidence: what finished runs leave in docs/evidence, and what results.md, board.md and verl.md say.

    python -m website.evidence strip RUNS FILE.tar.gz   where the runs are: makes one archive without weights and texts;
                                                        RUNS may be the folder of a board
    python -m website.evidence add FILE.tar.gz ...      unpacks it into docs/evidence, and records the sitting
    python -m website.evidence                          writes what is generated in docs/{results,board,verl}.md
    python -m website.evidence --check                  names what is not up to date, and exits with 1

- `stripping.py`  run folder -> the files that are committed, without texts, weights, paths and names of machines
- `sittings.py`   docs/evidence/sittings.yaml: when, where and at which commit runs were made; checks it
- `groups.py`     the runs of each task, read with the functions of `egpo compare`; every contrast of the page
- `boards.py`     boards of `egpo board`: stripping, and their part of docs/board.md
- `engines.py`    verl against the embedded engine, pair by pair, and their part of docs/verl.md
- `page.py`       the text and the tables
- `curves.py`     the figures

    docs/evidence/sittings.yaml
                  <task>/<run>/            config.yaml, provenance.json, stages.json, metrics.jsonl.gz,
                                           timings.jsonl.gz, health.jsonl, before_training.json,
                                           evals/*.json, evals/*.jsonl.gz
                  before_training/<task>/  the evaluations of the base model and of the cold start, once
                  cold_starts/<name>/      the supervised run before RL
                  boards/<name>/           board.yaml, holes.yaml (why runs are missing), sittings.yaml, and
                                           before_training/<task>/, cold_starts/<name>/, runs/<run>/ as above, with
                                           few metrics
                  engines/  engines_cpu/   the same for runs on both engines; those on verl have verl/starts.jsonl
                  egpo-tiny/               the same for runs of egpo-tiny, of which the page has tables (`add --part`)
"""
