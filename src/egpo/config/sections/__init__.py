"""The sections of a recipe: one file a concern, a meaning under each key."""
