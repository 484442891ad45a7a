"""The real transformers: every token's bytes, the special tokens and a text's ids, as it has them.

usage: real_tokens.py TOKENS MODEL...     exits 1 if any differs
TOKENS is the example of that name. A MODEL is a directory, also a fixture's. By hand, with SGLang's own environment:
`~/.cache/afterbay-sglang/venv/bin/python` (tokenizers 0.23.2).
"""

import json
import pathlib
import re
import subprocess
import sys

from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

TEXTS = [
    "日本語のテキストを読む。", "中文分词器把汉字拆成字节", "한국어 문장도", "emoji 🙂👍🏽 🏳️‍🌈🇯🇵 🫠", "héllo Привет שלום 𓀀",
    "def f(x):\n\treturn {\"a\": [1, 2.5e3]}  # two  spaces\n\n", "", " ", "a\u0000\u007f\r\n", "<s>a</s>", "x" * 3000,
]
BYTE_OF = {char: byte for byte, char in bytes_to_unicode().items()}


def load(model):
    if (model / "tokenizer_config.json").exists():
        return PreTrainedTokenizerFast.from_pretrained(str(model))
    return PreTrainedTokenizerFast(tokenizer_file=str(model / "tokenizer.json"))


def check(example, model):
    tok, wrong = load(model), []
    ours = subprocess.run(
        [example, str(model)], input="".join(json.dumps(text) + "\n" for text in TEXTS), capture_output=True, text=True,
        check=True,
    ).stdout.splitlines()
    read, ids = json.loads(ours[0]), [json.loads(line) for line in ours[1:]]
    tokens = [bytes(token) for token in read["bytes"]]
    if len(tokens) != len(tok):
        wrong.append(f"size {len(tokens)}, should be {len(tok)}")
    added = tok.added_tokens_decoder
    special = sorted({id for id, token in added.items() if token.special} | set(tok.all_special_ids))
    if read["special"] != special:
        wrong.append(f"special {read['special']}, should be {special}")
    if tok.eos_token_id is not None and tok.eos_token_id not in read["eos"]:
        wrong.append(f"eos {read['eos']} without {tok.eos_token_id}")
    first = next(id for id in range(len(tok)) if id not in special and re.fullmatch("[a-z]{2,}", tok.decode([id])))
    start = tok.decode([first], skip_special_tokens=True)
    for id in range(len(tok)):
        text = tok.decode([first, id], skip_special_tokens=True)
        if text != start + tokens[id].decode(errors="replace"):
            wrong.append(f"id {id}: {tokens[id]!r}, should be {text[len(start):]!r}")
        # Not only what it looks like, the bytes themselves.
        if read["kind"] == "byte-level" and id not in added:
            exact = bytes(BYTE_OF[char] for char in tok.convert_ids_to_tokens(id))
            if id not in special and tokens[id] != exact:
                wrong.append(f"id {id}: {tokens[id]!r}, should be {exact!r}")
    if read["kind"] == "byte-level":
        everything = tok.decode(list(range(len(tok))), skip_special_tokens=True)
        if everything != b"".join(tokens).decode(errors="replace"):
            wrong.append("all tokens in a row differ")
    same = 0
    for text, ours in zip(TEXTS, ids, strict=True):
        theirs = tok.encode(text, add_special_tokens=False)
        if ours != theirs:
            wrong.append(f"{text!r}: {ours}, should be {theirs}")
        same += b"".join(tokens[id] for id in ours).decode(errors="replace").lstrip(" ") == text.lstrip(" ")
    print(model, read["kind"], len(tokens), "tokens,", same, "of", len(TEXTS), "texts come back the same,", "eos", read["eos"])
    for line in wrong[:10]:
        print("  WRONG", line)
    return not wrong


if __name__ == "__main__":
    sys.exit(not all([check(sys.argv[1], pathlib.Path(model)) for model in sys.argv[2:]]))
