//! A pickle as a tree of values, read and written again; nothing is ever unpickled.
