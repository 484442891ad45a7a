"""What CPython makes of pickles, for the tests; no class is imported, stubs record what is done to them.

`record.py make DIR` writes pickles of many kinds of objects, NAME.PROTOCOL.
`record.py compare DIR` loads NAME and NAME.again, for every pair in DIR, with the loader in C and the one in Python,
and ends with 1 where one pair differs in value, in type, in order or in what is shared. `compare-values` does not look
at what is shared, `compare-loadable` not at what CPython itself does not load. They print how many pairs they compared.
"""

import array
import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import math
import pathlib
import pickle
import struct
import sys
import uuid


# compare

class Recording(type):
    """Calling a stub class is a REDUCE, its `__new__` alone a NEWOBJ."""

    def __call__(cls, *args, **kwargs):
        made = cls.__new__(cls, *args, **kwargs)
        made.done[0] = ("call", args, kwargs)
        return made


class Stub(metaclass=Recording):
    def __new__(cls, *args, **kwargs):
        made = object.__new__(cls)
        made.done = [("new", args, kwargs)]
        return made

    def __setstate__(self, state):
        self.done.append(("state", state))

    def append(self, item):
        self.done.append(("append", item))

    def extend(self, items):
        self.done.extend(("append", item) for item in items)

    def __setitem__(self, key, value):
        self.done.append(("set", key, value))

    def __call__(self, *args):
        made = Stub()
        made.done[0] = ("call", self, args)
        return made


@functools.cache
def stub(module, name):
    return type(name, (Stub,), {"path": (module, name)})


def unpickler(base):
    class Unpickler(base):
        def find_class(self, module, name):
            return stub(module, name)

    return Unpickler


class Differ(Exception):
    pass


class Same:
    """Walks two values side by side; an object met again must be met again on the other side."""

    def __init__(self, sharing):
        self.sharing, self.there, self.back, self.alive = sharing, {}, {}, []

    def check(self, a, b):
        if isinstance(a, type):
            if a is not b:
                raise Differ(f"class {a} is {b}")
            return
        if type(a) is not type(b):
            raise Differ(f"{type(a)} is {type(b)}")
        if isinstance(a, float):
            if struct.pack("d", a) != struct.pack("d", b):
                raise Differ(f"{a} is {b}")
        elif a is None or isinstance(a, (bool, int, str, bytes)) or a == ():
            if a != b:
                raise Differ(f"{a!r:.80} is {b!r:.80}")
        elif self.sharing and (id(a) in self.there or id(b) in self.back):
            if self.there.get(id(a)) != id(b) or self.back.get(id(b)) != id(a):
                raise Differ(f"shared otherwise: {type(a)}")
        else:
            self.there[id(a)], self.back[id(b)] = id(b), id(a)
            self.alive += [a, b]
            self.parts(a, b)

    def parts(self, a, b):
        if isinstance(a, bytearray):
            if a != b:
                raise Differ("bytearray")
            return
        if isinstance(a, Stub):
            a, b = a.done, b.done
        if isinstance(a, dict):
            a, b = list(a.items()), list(b.items())
        if isinstance(a, (set, frozenset)):
            a, b = sorted(a, key=key), sorted(b, key=key)
        if len(a) != len(b):
            raise Differ(f"{len(a)} items are {len(b)}")
        for one, other in zip(a, b):
            self.check(one, other)


def key(item):
    return (str(type(item)), repr(item) if not isinstance(item, Stub) else "")


def loads(path, base):
    with open(path, "rb") as file:
        return unpickler(base)(file).load()


def compare(directory, sharing=True, loadable=False):
    pairs = 0
    for again in sorted(pathlib.Path(directory).glob("*.again")):
        first = again.with_suffix("")
        bases = [pickle.Unpickler, pickle._Unpickler]
        if loadable:
            try:
                loads(first, bases[1])
            except Exception:
                continue
        for base in bases:
            try:
                Same(sharing).check(loads(first, base), loads(again, base))
            except Exception as error:
                sys.exit(f"{first.name}, {base.__module__}: {type(error).__name__} {error}")
        pairs += 1
    print(pairs)


# make

@dataclasses.dataclass
class Plain:
    a: int
    b: object = None


@dataclasses.dataclass(slots=True)
class Slots:
    a: int
    b: object = None


class Listed(list):
    pass


class Keyed(dict):
    pass


class NewArgs:
    def __new__(cls, *args, **kwargs):
        return object.__new__(cls)

    def __getnewargs_ex__(self):
        return (1, 2), {"three": 3}


class Color(enum.Enum):
    RED = 1


Point = collections.namedtuple("Point", "x y")


def objects():
    yield "none", None
    yield "bools", [True, False]
    edges = [0, 1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64, 2**2100]
    yield "2/ints", edges + [-edge for edge in edges] + [-(2**63) - 1]
    yield "floats", [0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, 5e-324, 1.7976931348623157e308]
    yield "plain", {"rids": ["a", "b"], "n": (1, 2, 3, 4), "t": ((), (1,), (1, 2), (1, 2, 3))}
    yield "long_list", [[index] for index in range(2500)]
    yield "long_dict", {str(index): {"i": index} for index in range(2500)}
    yield "long_tuple", tuple(range(2500))
    one = ["shared"]
    yield "shared", [one, one, {"one": one}, (one, one)]
    itself = []
    itself.append(itself)
    yield "list_of_itself", itself
    itself = {}
    itself["self"] = itself
    yield "dict_of_itself", itself
    itself = Plain(1)
    itself.b = [itself, {"it": itself}]
    yield "object_of_itself", itself
    itself = Listed([1])
    itself += [itself, 2]
    itself.also = itself
    yield "list_class_of_itself", itself
    yield "dataclass", [Plain(1), Plain(2, Plain(3))]
    yield "dataclass_slots", [Slots(1), Slots(2, Slots(3))]
    keyed = Keyed(a=1)
    keyed.b = 2
    yield "subclasses", [Listed([1, 2, 3]), keyed, Keyed()]
    yield "new_args", [NewArgs(), NewArgs()]
    yield "deque", [collections.deque(range(3)), collections.deque([1], 5), collections.deque()]
    yield "ordered", collections.OrderedDict(a=1, b=[2])
    yield "default", collections.defaultdict(list, a=[1])
    yield "counter", collections.Counter("aab")
    yield "named", Point(1, Point(2, 3))
    yield "enum", [Color.RED, Color.RED]
    yield "uuid", uuid.UUID(int=7)
    yield "decimal", decimal.Decimal("1.5")
    yield "partial", functools.partial(print, 1, sep="")
    yield "error", ValueError("no", 3)
    yield "more", [1 + 2j, range(3), slice(1, 2), datetime.timedelta(1, 2, 3), Ellipsis, NotImplemented, list, len]
    yield "3/text", ["", "é", "日本", "😀", "\ud800", "a\udfffb", "line\nback\\slash", "x" * 255, "y" * 256, "z" * 70000]
    yield "3/bytes", [b"", b"a\xff", b"b" * 255, b"c" * 256, b"d" * 70000]
    yield "3/bytearray", [bytearray(), bytearray(b"ab"), bytearray(70000)]
    yield "3/sets", [set(), {1}, {"a", "b"}, frozenset(), frozenset([1, 2])]
    yield "3/time", datetime.datetime(2026, 11, 20)
    yield "3/arrays", [array.array(code, [0, 1, 127]) for code in "bBhHiIlLqQfd"] + [array.array("q")]


def make(directory):
    for name, value in objects():
        # Text that protocol 0 escapes is not understood by Afterbay, nor long ints in decimals, nor bytes that
        # protocols 0 to 2 write as such text: a number before the name is the lowest protocol.
        lowest, name = name.split("/") if "/" in name else (0, name)
        for protocol in range(4, pickle.HIGHEST_PROTOCOL + 1):
            path = pathlib.Path(directory, f"{name.removeprefix('binary/')}.{protocol}")
            try:
                path.write_bytes(pickle.dumps(value, protocol))
            except (pickle.PicklingError, TypeError, RecursionError):
                if protocol >= 2:
                    raise  # what 0 and 1 cannot pickle is no matter


if __name__ == "__main__":
    command, directory = sys.argv[1:]
    if command == "make":
        make(directory)
    else:
        compare(directory, command != "compare-values", command == "compare-loadable")
