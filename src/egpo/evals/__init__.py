"""How good is a model, how sure are we, and is another one better? Figures with intervals, paired comparisons."""
