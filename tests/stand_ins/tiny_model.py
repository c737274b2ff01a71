"""Writes a tiny model for llama.cpp: it writes nonsense, but calls tools as a good one does.

Half a megabyte, the same bytes for the same seed. Its weights are random but for a few directions: with tools
it answers a person by one call, of any of them, and a result by words; without tools it answers by words. Its
vocabulary has one token for each byte, so that prompts are long.
"""

from __future__ import annotations

from pathlib import Path

_WIDTH, _LAYERS, _HEADS, _INNER = 64, 2, 4, 128
_CONTEXT = 32_768

# The prompt ends in <|call|> where a call is due.
_TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}# Tools
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>
For each call return a JSON object within <tool_call></tool_call>:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}<|im_start|>user
{{ message.content }}<|im_end|>
{% elif message.role == 'assistant' %}<|im_start|>assistant
{% if message.content %}{{ message.content }}{% endif %}
{%- for tool_call in message.tool_calls or [] %}
{%- if (loop.first and message.content) or (not loop.first) %}
{% endif %}<tool_call>
{"name": "{{ tool_call.function.name }}", "arguments": {{ tool_call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% elif message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if tools and messages[-1].role == 'user' %}<|call|>{% endif %}{% endif %}"""

_CONTROL, _TEXT = 3, 4
_SPECIAL = {
    "<|endoftext|>": _CONTROL,
    "<|im_start|>": _CONTROL,
    "<|im_end|>": _CONTROL,
    "<|call|>": _CONTROL,
    "<tool_call>": _TEXT,
    "</tool_call>": _TEXT,
}


def write_tiny_model(path: Path, *, seed: int = 1, end: float = 0.9) -> Path:
    """Write the model. The higher ``end`` is, the shorter its answers are."""
    import gguf
    import numpy as np

    random = np.random.default_rng(seed)
    tokens = [*_byte_tokens(), *_SPECIAL]
    number = {token: index for index, token in enumerate(tokens)}

    def weights(*shape: int, scale: float = 0.05) -> np.ndarray:
        return (random.standard_normal(shape) * scale).astype(np.float32)

    embedding, output = weights(len(tokens), _WIDTH, scale=0.3), weights(len(tokens), _WIDTH, scale=0.15)
    # The first direction is always there, so that its weights say how likely a token is anywhere …
    embedding[:, 0] = 4.0
    output[:, :5] = 0.0
    output[:, 0] = -3.0
    for code in range(32, 127):
        output[number[tokens[code]], 0] = -3.0 if chr(code) in "{}<>" else 1.0
    output[number["<|im_end|>"], 0] = end
    # … and each of the others gives the next token.
    follows = {
        "<|call|>": "<tool_call>",
        "<tool_call>": tokens[10],
        "}": "</tool_call>",
        "</tool_call>": "<|im_end|>",
    }
    for direction, (token, next_token) in enumerate(follows.items(), 1):
        embedding[number[token], direction] = 8.0
        output[number[next_token], direction] = 6.0

    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    writer.add_file_type(0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 256 + list(_SPECIAL.values()))
    writer.add_token_merges(["Ġ t"])  # llama.cpp wants one; its result is no token, so it is never applied
    writer.add_eos_token_id(number["<|im_end|>"])
    writer.add_pad_token_id(number["<|endoftext|>"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(_TEMPLATE)
    unit = np.ones(_WIDTH, np.float32)
    tensors = {"token_embd": embedding, "output_norm": unit, "output": output}
    for layer in range(_LAYERS):
        named = {"attn_norm": unit, "ffn_norm": unit}
        named |= {name: weights(_WIDTH, _WIDTH) for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
        named |= {"ffn_gate": weights(_INNER, _WIDTH), "ffn_up": weights(_INNER, _WIDTH)}
        named["ffn_down"] = weights(_WIDTH, _INNER)
        tensors |= {f"blk.{layer}.{name}": tensor for name, tensor in named.items()}
    for name, tensor in tensors.items():
        writer.add_tensor(f"{name}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _byte_tokens() -> list[str]:
    """Give the characters that stand for the bytes 0 to 255 in byte-level vocabularies, as GPT-2 has them."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]
