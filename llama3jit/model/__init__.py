"""A model as data: its configuration, its weights by name, its plan, and the batch it runs on."""
