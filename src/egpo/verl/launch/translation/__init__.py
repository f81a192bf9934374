"""Our recipe in verl's words: one file a section."""
