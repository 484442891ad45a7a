"""Makes the fixtures: small tokenizers of every kind, and what the reader's own library decodes.

Each directory below tests/fixtures gets a tokenizer.json, and an expected.json: sequences of ids, and for every id of
them whether the text so far ends clean, not with U+FFFD: `skip` with special tokens left out, `keep` with them.
By hand: `~/.cache/afterbay-sglang/venv/bin/python tests/make_fixtures.py` (tokenizers 0.23.2 made those that are here).
"""

import json
import pathlib
import random

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent / "fixtures"
SPECIAL = ["<s>", "</s>", "<|im_end|>"]
TEXTS = [
    "日本語のテキストを読む。これは試験です。漢字とかな混じり文。",
    "中文分词器把汉字拆成字节，有时一个词元会跨越两个字。我们在这里测试。",
    "한국어 문장도 여러 바이트로 나뉩니다. 안녕하세요 세계.",
    "emoji 🙂🙃😀🎉👍🏽 and flags 🏳️‍🌈🇯🇵 in the middle of words.",
    "héllo wörld, façade, naïve, Привет мир, Γειά σου Κόσμε, שלום עולם.",
    "plain ascii words here, def f(x): return x + 1\n\tand some code {}\n",
    "a replacement � is a character too, and so are ｆｕｌｌｗｉｄｔｈ forms.",
]
# Not trained on: a tokenizer has no token for most of it.
RARE = ["𠮷野家で鱻を食べる", "𓀀𓁐 ꧁༺ 🦀🦞\n🧬 龘靐齉", "ᏣᎳᎩ 🫠🫡 日", "x🫠y\n\n🫡z ﷽"]


def llama(strip):
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))


def byte_level(use_regex, vocab):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tok.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    train(tok, trainers.BpeTrainer(vocab_size=vocab, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False))
    return tok


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_fallback(strip):
    tok = Tokenizer(models.BPE(byte_fallback=True, unk_token="<s>", fuse_unk=True))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tok.decoder = llama(strip)
    train(tok, trainers.BpeTrainer(vocab_size=520, special_tokens=SPECIAL + BYTES, limit_alphabet=90, show_progress=False))
    return only_special(tok)


def unigram(fallback):
    tok = Tokenizer(models.Unigram())
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    tok.decoder = llama(True) if fallback else decoders.Metaspace()
    special = SPECIAL + (BYTES if fallback else [])
    train(tok, trainers.UnigramTrainer(vocab_size=600, special_tokens=special, unk_token="<s>", show_progress=False))
    if fallback:
        tok = only_special(tok, lambda written: written["model"].update(byte_fallback=True))
    return tok


def word_piece():
    tok = Tokenizer(models.WordPiece(unk_token="<s>"))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    tok.decoder = decoders.WordPiece()
    train(tok, trainers.WordPieceTrainer(vocab_size=400, special_tokens=SPECIAL, show_progress=False))
    return tok


def only_special(tok, change=lambda written: None):
    """Byte tokens are the model's, not special ones, in real files."""
    written = json.loads(tok.to_str())
    written["added_tokens"] = [token for token in written["added_tokens"] if token["content"] in SPECIAL]
    change(written)
    return Tokenizer.from_str(json.dumps(written))


def train(tok, trainer):
    tok.train_from_iterator(TEXTS * 3, trainer)


def sequences(tok, r):
    vocab = tok.get_vocab_size()
    short = [i for i in range(vocab) if tok.decode([i]).endswith("\ufffd") or tok.decode([i]) == ""]
    for _ in range(40):
        ids = []
        while len(ids) < 24:
            kind = r.random()
            if kind < 0.5:
                ids += tok.encode(r.choice(TEXTS + RARE), add_special_tokens=False).ids[r.randrange(8) :][: r.randint(1, 12)]
            elif kind < 0.8 and short:
                ids += r.choices(short, k=r.randint(1, 5))
            else:
                ids += [r.randrange(vocab) for _ in range(r.randint(1, 4))]
            if r.random() < 0.1:
                ids.append(r.randrange(len(SPECIAL)))
        yield ids[:24]


def clean(tok, ids, skip):
    ends = (tok.decode(ids[: k + 1], skip_special_tokens=skip).endswith("\ufffd") for k in range(len(ids)))
    return "".join("01"[not replaced] for replaced in ends)


def main():
    kinds = {
        "byte-level": byte_level(True, 700),
        # Without words tokens grow over the end of a character into the next, as some of large vocabularies do.
        "byte-level-crossing": byte_level(False, 900),
        "byte-fallback": byte_fallback(True),
        "byte-fallback-no-strip": byte_fallback(False),
        "unigram-byte-fallback": unigram(True),
        "unigram": unigram(False),
        "word-piece": word_piece(),
    }
    for name, tok in kinds.items():
        folder = HERE / name
        folder.mkdir(parents=True, exist_ok=True)
        tok.save(str(folder / "tokenizer.json"), pretty=False)
        expected = [
            dict(ids=ids, skip=clean(tok, ids, True), keep=clean(tok, ids, False))
            for ids in sequences(tok, random.Random(name))
        ]
        lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in expected)
        (folder / "expected.json").write_text(f"[\n{lines}\n]\n")
        size = (folder / "tokenizer.json").stat().st_size
        print(name, tok.get_vocab_size(), "tokens", size, "bytes", sum("0" in one["skip"] for one in expected), "with open text")


if __name__ == "__main__":
    main()
