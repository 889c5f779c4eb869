"""`llama3jit plan`: the ops that a forward pass is made of."""

from llama3jit.cli import options


def plan(model: options.OptionalModel = None, kv_dtype: options.KVDtype = "f16") -> None:
    """Print the ops of a forward pass."""
    from llama3jit.cli.loading import model_or_default
    from llama3jit.devices.choose import KV_DTYPES, one_of
    from llama3jit.files.gguf import open_gguf
    from llama3jit.files.store import resolve
    from llama3jit.model.build import build_plan
    from llama3jit.model.config import read_config
    from llama3jit.model.plan import format_plan

    one_of("kv_dtype", kv_dtype, KV_DTYPES)
    with open_gguf(resolve(str(model_or_default(model)))) as gguf:
        print(format_plan(build_plan(read_config(gguf), gguf.tensors, kv_dtype)))
