"""llama-cpp-python's chat_format names as chat templates."""

from __future__ import annotations

from llama3jit.errors import InvalidArgumentError

_ZEPHYR = (
    "{% for message in messages %}"
    "{{ '<|' ~ message.role ~ '|>\n' ~ message.content ~ eos_token ~ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
_LLAMA_2 = (
    "{% set first = namespace(text='') %}{% for message in messages %}"
    "{% if message.role == 'system' %}"
    "{% set first.text = '<<SYS>>\n' ~ message.content ~ '\n<</SYS>>\n\n' %}"
    "{% elif message.role == 'user' %}"
    "{{ bos_token ~ '[INST] ' ~ first.text ~ message.content | trim ~ ' [/INST]' }}"
    "{% set first.text = '' %}"
    "{% else %}{{ ' ' ~ message.content | trim ~ ' ' ~ eos_token }}{% endif %}{% endfor %}"
)
_MISTRAL = (
    "{{ bos_token }}{% set first = namespace(text='') %}{% for message in messages %}"
    "{% if message.role == 'system' %}{% set first.text = message.content ~ '\n\n' %}"
    "{% elif message.role == 'user' %}"
    "{{ '[INST] ' ~ first.text ~ message.content ~ ' [/INST]' }}{% set first.text = '' %}"
    "{% else %}{{ ' ' ~ message.content | trim ~ eos_token }}{% endif %}{% endfor %}"
)

# Name -> a built-in template's name, or jinja text.
CHAT_FORMATS = {
    "chatml": "chatml",
    "chatml-function-calling": "chatml",  # tools go into its system prompt
    "llama-2": _LLAMA_2,
    "llama-3": "llama3",
    "mistral-instruct": _MISTRAL,
    "zephyr": _ZEPHYR,
}


def template_of(chat_format: object) -> str:
    """The template by llama-cpp-python's name. Raises InvalidArgumentError for one that is not
    there."""
    if not isinstance(chat_format, str) or chat_format not in CHAT_FORMATS:
        raise InvalidArgumentError(
            f"chat_format is {chat_format!r:.60}: expected one of {', '.join(CHAT_FORMATS)}; leave "
            f"it out to take the file's own template, or give jinja text as chat_template"
        )
    return CHAT_FORMATS[chat_format]
