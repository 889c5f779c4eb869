"""From text to token ids and back: tokenizer, chat templates, streamed text."""
