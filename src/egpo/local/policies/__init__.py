"""The model as the engine computes it: loaded, packed, cached, adapted."""
