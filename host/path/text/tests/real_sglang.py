"""The real SGLang 0.5.23: its DetokenizerManager sent single rows and rows joined as the crate says.

usage: real_sglang.py ENDINGS SEEDS [MODEL]     exits 1 if a text, the ids or a count differ, or a row is called whole
where `decode` of all ids so far ends with U+FFFD
ENDINGS is the example of that name. MODEL (a directory; else a tiny GPT-2) may also be a fixture's: what else a model
needs is made beside a copy of its tokenizer.json. Run in the directory that holds SGLang's `common.py`, by
`SGLANG_PLUGINS=none ~/.cache/afterbay-sglang/venv/bin/python`.
"""

import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
from array import array

sys.path.insert(0, os.getcwd())

ENDINGS, SEEDS = sys.argv[1], int(sys.argv[2])
MODEL = pathlib.Path(sys.argv[3] if len(sys.argv) > 3 else "models/tiny-gpt2")
if not (MODEL / "config.json").exists():
    made = pathlib.Path(tempfile.mkdtemp())
    for name in ("config.json", "generation_config.json", "special_tokens_map.json", "tokenizer_config.json"):
        shutil.copy(pathlib.Path("models/tiny-gpt2") / name, made)
    shutil.copy(MODEL / "tokenizer.json", made)
    MODEL = made
os.environ["AFTERBAY_MODEL"] = str(MODEL)

import common  # noqa: E402
from sglang.srt.managers import io_struct as io  # noqa: E402
from sglang.srt.managers.detokenizer_manager import DetokenizerManager  # noqa: E402
from sglang.srt.plugins import load_plugins  # noqa: E402
from sglang.srt.runtime_context import publish  # noqa: E402

TEXTS = [
    "héllo wörld ", "日本語のテキスト", "한국어 문장 ", "emoji 🙂🙃 ", "def f(x): return x\n", "🏳️‍🌈 flags ",
    "plain ascii words here ", "中文分词器把汉字", "𠮷野家 鱻", "a \ufffd b", "🦀🦞\n\n🧬", "読む。これは",
]


class Reader:
    def __init__(self):
        load_plugins()
        args = common.make_server_args(skip_tokenizer_init=False)
        publish(args, role="detokenizer")
        self.manager = DetokenizerManager(args, common.make_port_args(tempfile.mkdtemp()))
        self.tokenizer = self.manager.tokenizer
        self.number = 0

    def read(self, rows, skip, read_offset, trim):
        """All text of a request's rows, its ids, and the last count."""
        self.number += 1
        text, ids, count = "", [], 0
        for row in rows:
            columns = {name: None for name in io.BatchTokenIDOutput.__struct_fields__}
            for name in columns:
                if name.startswith("spec_"):
                    columns[name] = []
                elif name in ("reasoning_tokens", "cached_tokens", "retraction_counts", "image_tokens", "audio_tokens", "video_tokens"):
                    columns[name] = [0]
                elif name in ("http_worker_ipcs", "dp_ranks", "cached_tokens_details"):
                    columns[name] = [None]
            columns.update(
                rids=[f"r{self.number}"], finished_reasons=[row["finish"]], decoded_texts=[""], decode_ids=[array("q", row["decode"])],
                read_offsets=[read_offset], output_ids=[array("q", row["ids"])], skip_special_tokens=[skip],
                spaces_between_special_tokens=[True], no_stop_trim=[trim], prompt_tokens=[5], completion_tokens=[row["count"]],
            )
            out = self.manager.handle_batch_token_id_out(io.BatchTokenIDOutput(**columns))
            text += out.output_strs[0]
            ids += list(out.output_ids[0])
            count = out.completion_tokens[0]
        return text, ids, count


def request(reader, pieces, r):
    vocab = len(reader.tokenizer)
    ids, encode = [], lambda text: reader.tokenizer.encode(text, add_special_tokens=False)
    while len(ids) < r.choice((10, 60)):
        kind = r.random()
        if kind < 0.7:
            ids += encode("".join(r.choice(TEXTS) for _ in range(r.randint(1, 3))))
        elif kind < 0.85:
            ids += r.choices(pieces, k=r.randint(1, 4)) if pieces else []
        else:
            ids += [r.randrange(vocab) for _ in range(r.randint(1, 4))]
    tail = encode("a prompt 日\n ")[-5:]
    finish = r.choice([{"type": "length", "length": len(ids)}, {"type": "stop", "matched": ids[-1]}, {"type": "abort", "message": "x"}])
    rows, at, most = [], 0, r.choice((1, 1, 4))
    while at < len(ids):
        new = ids[at : at + r.randint(1, most)]
        at += len(new)
        rows.append(dict(decode=(tail if not rows else []) + new, ids=new, count=at, finish=finish if at == len(ids) else None))
    return rows, len(tail)


def one(rows):
    return dict(decode=sum((row["decode"] for row in rows), []), ids=sum((row["ids"] for row in rows), []),
                count=rows[-1]["count"], finish=rows[-1]["finish"])


def join(rows, endings, r):
    """As the outbox joins what waits together: the longest from the first row that ends whole and holds no broken one."""
    sent, at = [], 0
    while at < len(rows):
        to = min(at + r.choice((1, 2, 5, 100)), len(rows))
        while at < to:
            end = at + 1
            for k in range(at, to):
                if endings[k] == "b":
                    break
                if endings[k] == "w" or rows[k]["finish"]:
                    end = k + 1
            sent.append(one(rows[at:end]))
            at = end
    return sent


def main():
    reader = Reader()
    decode = reader.tokenizer.decode
    pieces = [i for i in range(len(reader.tokenizer)) if "\ufffd" in decode([i]) or not decode([i])]
    endings_of = subprocess.Popen([ENDINGS, str(MODEL)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    trials = different = wrong = rows_in = rows_out = clean_rows = whole_rows = 0
    for seed in range(SEEDS):
        r = random.Random(seed)
        for _ in range(400):
            rows, read_offset = request(reader, pieces, r)
            skip, trim = r.random() < 0.7, r.random() < 0.3
            endings_of.stdin.write(json.dumps([row["decode"] for row in rows]) + "\n")
            endings_of.stdin.flush()
            endings = endings_of.stdout.readline().strip()
            so_far = []
            for row, ending in zip(rows, endings, strict=True):
                so_far += row["decode"]
                clean = not decode(so_far, skip_special_tokens=skip).endswith("\ufffd")
                clean_rows += clean
                whole_rows += ending == "w"
                if ending == "w" and not clean:
                    wrong += 1
                    print("whole but not clean", so_far)
            singly = reader.read(rows, skip, read_offset, trim)
            for _ in range(3):
                joined = join(rows, endings, r)
                together = reader.read(joined, skip, read_offset, trim)
                trials += 1
                rows_in += len(rows)
                rows_out += len(joined)
                if singly != together:
                    different += 1
                    if different < 4:
                        print("differs", [row["decode"] for row in rows], endings, [row["decode"] for row in joined], repr(singly[0]), repr(together[0]))
    print(f"{sys.argv[3:] or 'tiny-gpt2'}: {trials} trials, {different} differ, {wrong} wrongly whole; "
          f"{whole_rows} of {clean_rows} clean rows are whole; {rows_in} rows went as {rows_out}")
    endings_of.stdin.close()
    sys.stdout.flush()
    os._exit(1 if different or wrong else 0)


main()
