"""What is on disk: model files, the table of block formats, the store of local models."""
