"""A tiny model for the real vLLM: GPT-2 with random weights (`--load-format dummy`), and a tokenizer with a token for each byte."""
import json

FIRST_BYTE = 2  # 0 and 1 are special

CONFIG = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 64,
    "n_layer": 1,
    "n_head": 2,
    "n_positions": 2048,
    "n_ctx": 2048,
    "vocab_size": 258,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "float32",
    "tie_word_embeddings": True,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}


def byte_names():
    """The names of the 256 bytes in a byte-level vocabulary, as GPT-2 gives them: printable ones as they are, others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{byte: chr(byte) for byte in printable}, **{byte: chr(0x100 + at) for at, byte in enumerate(others)}}


def ids(text):
    return [FIRST_BYTE + byte for byte in text.encode()]


def write(directory):
    directory.mkdir()
    names = byte_names()
    vocabulary = {"<s>": 0, "</s>": 1, **{names[byte]: FIRST_BYTE + byte for byte in range(256)}}
    special = [
        {"id": at, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for at, name in enumerate(("<s>", "</s>"))
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
    model.update(fuse_unk=False, byte_fallback=False, ignore_merges=False, vocab=vocabulary, merges=[])
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None}
    tokenizer.update(pre_tokenizer=level, post_processor=None, decoder=level, model=model)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "model_max_length": 2048}
    for name, content in (("config", CONFIG), ("tokenizer", tokenizer), ("tokenizer_config", settings)):
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory
