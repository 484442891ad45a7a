"""Compares the public API of the Rust SDK with that of its last release, plugins/sdk/api.txt.

docs/decisions/sdk-api.md says why this is not cargo-semver-checks. The script reads what rustdoc writes as JSON. Each public item
is a line: its path, its kind and its signature. A removed or another line needs a new major version. A new line needs a new minor
version, or a major one if code outside can notice it: a required function of a trait, a variant of an exhaustive enum, or a field.

usage: sdk_api.py RUSTDOC_JSON MANIFEST API_TXT [--bless]
"""

import json
import re
import sys

HEAD = "# afterbay-plugin "
# Parts of rustdoc's JSON that are no part of a signature: numbers of items differ from build to build.
LEFT_OUT = {"id", "impls", "items", "variants", "fields", "implementations", "has_stripped_fields", "has_stripped_variants"}


def signature(value):
    if isinstance(value, dict):
        # The name of a parameter is no part of a function's type.
        value = {key: [it[1] for it in types] if key == "inputs" and all(isinstance(it, list) for it in types) else types
                 for key, types in value.items()}
        return {key: signature(it) for key, it in value.items() if key not in LEFT_OUT and it not in (None, [], {}, False)}
    return [signature(it) for it in value] if isinstance(value, list) else value


class Api:
    def __init__(self, doc):
        self.index = doc["index"]
        self.lines = {}
        self.seen = set()
        self.item(doc["root"], "")

    def get(self, number):
        return self.index.get(str(number))

    def line(self, path, kind, inner, noticed=False):
        text = json.dumps(signature(inner), sort_keys=True, separators=(",", ":"))
        self.lines[f"{path} {kind} {text}"] = noticed

    def item(self, number, parent, name=None, noticed=False):
        item = self.get(number)
        if item is None:
            return
        ((kind, inner),) = item["inner"].items()
        if kind == "use":
            self.item(inner["id"], parent, inner["name"])
            return
        path = "::".join(filter(None, [parent, name or item["name"]]))
        if (path, kind) in self.seen:
            return
        self.seen.add((path, kind))
        exhaustive = "non_exhaustive" not in json.dumps(item["attrs"])
        if kind == "module":
            for it in inner["items"]:
                self.item(it, path)
            return
        if kind == "function" and noticed:
            noticed = not inner["has_body"]
        if not isinstance(inner, dict):
            # A macro's text is its implementation.
            self.line(path, kind, {}, noticed)
            return
        self.line(path, kind, inner, noticed)
        if kind == "enum":
            for it in inner["variants"]:
                self.item(it, path, noticed=exhaustive)
        elif kind == "struct":
            fields = inner["kind"].get("plain", {}).get("fields", []) if isinstance(inner["kind"], dict) else []
            for it in fields:
                self.item(it, path, noticed=exhaustive)
        elif kind == "trait":
            for it in inner["items"]:
                self.item(it, path, noticed=True)
        for number in inner.get("impls", []):
            self.implementation(number, path)

    def implementation(self, number, path):
        item = self.get(number)
        if item is None:
            return
        inner = item["inner"]["impl"]
        if inner["is_synthetic"] or inner["blanket_impl"]:
            return
        if inner["trait"] is None:
            for it in inner["items"]:
                self.item(it, path)
        else:
            self.line(path, "impl", {"trait": inner["trait"], "generics": inner["generics"]})


def version(text):
    return tuple(int(part) for part in re.search(r"(\d+)\.(\d+)\.(\d+)", text).groups())


def main(doc, manifest, file, *options):
    with open(doc) as doc:
        doc = json.load(doc)
    with open(manifest) as manifest:
        now = version(re.search(r'(?m)^version = "(.*)"', manifest.read()).group(1))
    head = f"{HEAD}{'.'.join(map(str, now))}, rustdoc format {doc['format_version']}"
    lines = Api(doc).lines
    if "--bless" in options:
        with open(file, "w") as out:
            out.write("\n".join([head, *sorted(lines)]) + "\n")
        return 0
    with open(file) as released:
        released_head, *released = released.read().splitlines()
    if released_head.rsplit(None, 1)[1] != head.rsplit(None, 1)[1] and set(released) != set(lines):
        print(f"{file}: another rustdoc wrote it, nothing is compared: write it again at the release ({released_head})", file=sys.stderr)
        return 0
    removed = sorted(set(released) - set(lines))
    added = sorted(set(lines) - set(released))
    noticed = [line for line in added if lines[line]]
    then = version(released_head)
    is_major, is_minor = now[0] > then[0], now[:2] > then[:2]
    wrong = [] if is_major else [f"- {line}" for line in removed] + [f"+ {line}" for line in noticed]
    if wrong:
        needs = f"version {then[0] + 1}.0.0"
    else:
        wrong = [] if is_minor else [f"+ {line}" for line in added]
        needs = f"version {then[0]}.{then[1] + 1}.0"
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        print(f"the SDK's API differs from that of {'.'.join(map(str, then))}, this needs {needs}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
