"""Supervised fine-tuning: learn the assistant's turns of conversations, as the cold start before RL.

A file of conversations and a config enter; a run folder with metrics and checkpoints leaves. In the order of the data:

    rendering.py   from a record of the file to prompts and answers, as the chat template writes them
    examples.py    tokens and learned spans, in flat tables; counts of what cannot be learned
    batches.py     training and evaluation set, the batches of all steps, packs without padding
    sft_run.py     the state of a run, the loss, one step, one evaluation
    session.py     `sft`: from a recipe to the folder of the trained model
    preview.py     `egpo sft --dry-run`: counts, lengths, packing, one example

To add a reason for leaving out a row: return `Dropped(reason)`, and describe it in `examples.REASONS`.
"""
