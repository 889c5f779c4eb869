"""The conversation of `llama3jit chat`: input, commands, replies on the screen."""
