"""Code that runs in worker processes, perhaps under another interpreter, without egpo."""
