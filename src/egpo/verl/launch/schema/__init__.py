"""What verl's configuration knows, written down: no verl is needed to check a recipe against it."""
