"""Sampling on one GPU: a `DecodeJob` becomes filled `ResponseTables`.

decoder.py          Decoder: owns weights, buffers and graphs; runs a job, with fewer rows at once if memory is short
weights.py          the model's weights as the graphs read them
decode_buffers.py   memory at fixed addresses, and the prefill of prompts into it
row_scheduler.py    which rows are sampled together; bookkeeping on the host, without a GPU
token_graphs.py     one token for all rows, captured as a CUDA graph
decode_episodes.py  the turns of episodes: tokens of the environment are written to a table, and the graphs go on
kernels/            attention of new tokens, truncation, drawing and recording of tokens
"""
