"""Methods of `Llama` in OpenAI's and llama-cpp-python's shape; see docs/openai.md."""
