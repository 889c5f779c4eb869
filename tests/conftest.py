"""Being here puts tests/ on the import path, for the helpers that several folders use."""
