"""The common decoder shapes on a CPU, over the model's own modules, with fewer passes over memory."""
