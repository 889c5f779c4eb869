"""`python -m llama3jit`."""

from llama3jit.cli import main

main()
