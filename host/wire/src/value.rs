//! One value of a frame, msgpack or pickle, read in place. What columns mean is not known here.

use std::ops::Range;
use std::slice::ChunksExact;

use afterbay_pickle::{Node, NodeId, Tree};

use crate::pack::{self, Cells, INT, IdItems, Item, LIST, MAP, NIL, OTHER, STR, TYPES, Types};
use crate::row::Ids;

/// A value: the bytes of one msgpack value (structure checked), or a node of a pickle's tree.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    Packed(&'a [u8]),
    Tree(&'a Tree, NodeId),
}

impl<'a> Value<'a> {
    #[inline]
    pub(crate) fn is_nil(self) -> bool {
        match self {
            Value::Packed(bytes) => bytes[0] == 0xc0,
            Value::Tree(tree, id) => tree.is_none(id),
        }
    }

    pub(crate) fn bool(self) -> Option<bool> {
        match self {
            Value::Packed(bytes) => match pack::item(bytes)? {
                Item::Bool(bool) => Some(bool),
                _ => None,
            },
            Value::Tree(tree, id) => tree.bool(id),
        }
    }

    #[inline]
    pub(crate) fn int(self) -> Option<i64> {
        match self {
            Value::Packed(bytes) => pack::int(bytes),
            Value::Tree(tree, id) => tree.int(id),
        }
    }

    pub(crate) fn str(self) -> Option<&'a str> {
        match self {
            Value::Packed(bytes) => std::str::from_utf8(pack::str_bytes(bytes)?).ok(),
            Value::Tree(tree, id) => tree.str(id),
        }
    }

    /// Its type, as a set of one.
    pub(crate) fn types(self) -> Types {
        self.types_and_weight().0
    }

    /// What it counts for where a pickle may say it many times: its items, entries, ids or bytes. In msgpack nothing is
    /// said twice, and nothing is counted.
    pub(crate) fn weight(self) -> usize {
        self.types_and_weight().1
    }

    #[inline]
    fn types_and_weight(self) -> (Types, usize) {
        match self {
            Value::Packed(bytes) => (TYPES[bytes[0] as usize], 0),
            Value::Tree(tree, id) if let Some(text) = tree.text(id) => (STR, text.len()),
            Value::Tree(tree, id) => match tree.node(id) {
                Node::None => (NIL, 0),
                Node::Int(_) => (INT, 0),
                Node::Bytes(bytes) | Node::ByteArray(bytes) => (OTHER, bytes.len()),
                Node::List(items) => (LIST, items.len()),
                Node::Dict(pairs) => (MAP, pairs.len()),
                Node::Reduce { args, .. } => {
                    let args = tree.items(args).unwrap_or_default();
                    let bytes = args.iter().map(|&arg| tree.bytes(arg).map_or(0, <[u8]>::len)).sum();
                    (OTHER, bytes)
                }
                _ => (OTHER, 0),
            },
        }
    }

    /// Whether it is a str that [`Value::str`] can show.
    #[inline]
    pub(crate) fn is_text(self) -> bool {
        // Nearly all are ASCII, which is found much sooner.
        self.str_bytes().is_some_and(|text| text.is_ascii() || std::str::from_utf8(text).is_ok())
    }

    /// The bytes of a str, which may be no text.
    #[inline]
    pub(crate) fn str_bytes(self) -> Option<&'a [u8]> {
        match self {
            Value::Packed(bytes) => pack::str_bytes(bytes),
            Value::Tree(tree, id) => tree.text(id),
        }
    }

    /// The value of a str key in a map.
    pub(crate) fn get(self, key: &str) -> Option<Value<'a>> {
        match self {
            Value::Packed(bytes) => {
                let Item::Map(len, body) = pack::item(bytes)? else { return None };
                let mut values = pack::items(body, 2 * len);
                while let (Some(name), Some(value)) = (values.next(), values.next()) {
                    if pack::item(name) == Some(Item::Str(key.as_bytes())) {
                        return Some(Value::Packed(value));
                    }
                }
                None
            }
            Value::Tree(tree, id) => Some(Value::Tree(tree, tree.get(id, key)?)),
        }
    }

    /// The items of a list.
    pub(crate) fn list(self) -> Option<Vec<Value<'a>>> {
        match self {
            Value::Packed(bytes) => match pack::item(bytes)? {
                Item::Array(len, body) => Some(pack::items(body, len).map(Value::Packed).collect()),
                _ => None,
            },
            Value::Tree(tree, id) => match tree.node(id) {
                Node::List(items) => Some(items.iter().map(|&item| Value::Tree(tree, item)).collect()),
                _ => None,
            },
        }
    }

    /// Whether it is an id array: an `array('q')`, or in a pickle a list of int.
    pub(crate) fn is_ids(self) -> bool {
        match self {
            Value::Packed(bytes) => pack::id_items(bytes).is_some(),
            Value::Tree(tree, id) => match tree.node(id) {
                Node::List(items) => items.iter().all(|&item| tree.int(item).is_some()),
                _ => tree.ids_len(id).is_some(),
            },
        }
    }

    /// How many ids an id array has.
    #[inline]
    pub(crate) fn id_count(self) -> Option<usize> {
        match self {
            Value::Packed(bytes) => pack::id_items(bytes).map(IdItems::count),
            Value::Tree(tree, id) => tree.ids_len(id),
        }
    }

    /// Appends the ids of an id array, and says how many they are.
    #[inline]
    pub(crate) fn ids(self, out: &mut Vec<i64>) -> Option<usize> {
        match self {
            Value::Packed(bytes) => {
                let ids = pack::id_items(bytes)?;
                ids.push_to(out);
                Some(ids.count())
            }
            Value::Tree(tree, id) => tree.ids(id, out),
        }
    }
}

/// The cells of a column with one a row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rows<'a> {
    Packed { frame: &'a [u8], starts: &'a [u32], cells: Cells },
    Tree(&'a Tree, &'a [NodeId]),
}

impl<'a> Rows<'a> {
    /// The cell of a row that there is.
    #[inline]
    pub(crate) fn get(self, row: u32) -> Value<'a> {
        match self {
            Rows::Packed { frame, starts, cells } => {
                let (start, end) = cells.span(starts, row, row + 1);
                Value::Packed(&frame[start..end])
            }
            Rows::Tree(tree, items) => Value::Tree(tree, items[row as usize]),
        }
    }

    /// The first cell, where it shows that all are of its type and length: msgpack with equal headers.
    #[inline]
    pub(crate) fn model(self) -> Option<Value<'a>> {
        match self {
            Rows::Packed { cells: Cells::Uniform { width: 2.., .. }, .. } => Some(self.get(0)),
            _ => None,
        }
    }

    /// The cells' bytes, where there is a [`Rows::model`] of them.
    #[inline]
    fn alike(self, rows: u32) -> Option<ChunksExact<'a, u8>> {
        match self {
            Rows::Packed { frame, cells: Cells::Uniform { start, width: width @ 2.. }, .. } => {
                let cells = &frame[start as usize..(start + rows * width) as usize];
                Some(cells.chunks_exact(width as usize))
            }
            _ => None,
        }
    }

    /// Whether it shows at a glance that all cells are texts: ASCII, of one length.
    pub(crate) fn are_ascii(self, rows: u32) -> bool {
        let length = self.model().and_then(Value::str_bytes).map(<[u8]>::len);
        let (Some(length), Some(mut cells)) = (length, self.alike(rows)) else { return false };
        cells.all(|cell| cell[cell.len() - length..].is_ascii())
    }

    /// Whether it shows at a glance that all cells are id arrays: of one length, in the usual form.
    pub(crate) fn are_ids(self, rows: u32) -> bool {
        self.alike(rows).is_some_and(|mut cells| cells.all(|cell| pack::usual_ids(cell).is_some()))
    }

    /// Appends the ids of all cells, which are id arrays, and where each ends. `are_usual`: each [is](Rows::are_ids) of the usual
    /// form.
    pub(crate) fn ids(self, rows: u32, are_usual: bool, out: &mut Ids) {
        let count = self.model().filter(|_| are_usual).and_then(Value::id_count);
        if let (Some(count), Some(cells)) = (count, self.alike(rows)) {
            // No cell is asked where it begins, how long it is, or whether there is room.
            let from = out.values.len();
            match count {
                // A step's usual rows.
                1 => {
                    let id = |cell: &[u8]| cell.last_chunk().map_or(0, |id| i64::from_le_bytes(*id));
                    out.values.extend(cells.map(id));
                }
                _ => {
                    out.values.resize(from + count * rows as usize, 0);
                    let places = out.values[from..].chunks_exact_mut(count.max(1));
                    for (place, cell) in places.zip(cells) {
                        let (ids, _) = cell[cell.len() - 8 * count..].as_chunks();
                        place.iter_mut().zip(ids).for_each(|(place, id)| *place = i64::from_le_bytes(*id));
                    }
                }
            }
            out.ends.extend((1..=rows).map(|row| (from + row as usize * count) as u32));
            return;
        }
        for cell in self.iter(rows) {
            cell.ids(&mut out.values);
            out.ends.push(out.values.len() as u32);
        }
    }

    /// Whether it shows that all cells are nil: msgpack of one byte each.
    pub(crate) fn are_nil(self, rows: u32) -> bool {
        match self {
            Rows::Packed { frame, cells: Cells::Uniform { start, width: 1 }, .. } => {
                frame[start as usize..(start + rows) as usize].iter().all(|&byte| byte == 0xc0)
            }
            _ => false,
        }
    }

    /// All cells, by row.
    pub(crate) fn iter(self, rows: u32) -> impl Iterator<Item = Value<'a>> + Clone {
        (0..rows).map(move |row| self.get(row))
    }

    /// The types that the cells have. `None`: they come to more than `most`.
    pub(crate) fn types(self, rows: u32, most: usize) -> Option<Types> {
        match self {
            Rows::Packed { cells: Cells::Uniform { width: 2.., .. }, .. } => self.model().map(Value::types),
            Rows::Packed { frame, cells: Cells::Uniform { start, .. }, .. } => {
                let cells = &frame[start as usize..(start + rows) as usize];
                Some(cells.iter().fold(0, |types, &byte| types | TYPES[byte as usize]))
            }
            Rows::Packed { frame, starts, cells: Cells::Indexed { first } } => {
                let starts = &starts[first as usize..][..rows as usize];
                Some(starts.iter().fold(0, |types, &at| types | TYPES[frame[at as usize] as usize]))
            }
            Rows::Tree(..) => self
                .iter(rows)
                .try_fold((0, most), |(types, left), cell| {
                    let (its, weight) = cell.types_and_weight();
                    Some((types | its, left.checked_sub(weight)?))
                })
                .map(|(types, _)| types),
        }
    }

    /// The bytes of several cells, which lie one after another; of a pickle there are none.
    pub(crate) fn bytes(self, run: Range<u32>) -> Option<&'a [u8]> {
        match self {
            Rows::Packed { frame, starts, cells } => {
                let (start, end) = cells.span(starts, run.start, run.end);
                Some(&frame[start..end])
            }
            Rows::Tree(..) => None,
        }
    }

    /// The nodes of several cells; of msgpack there are none.
    pub(crate) fn nodes(self, run: Range<u32>) -> Option<&'a [NodeId]> {
        match self {
            Rows::Packed { .. } => None,
            Rows::Tree(_, items) => Some(&items[run.start as usize..run.end as usize]),
        }
    }
}

/// A column of a batch.
#[derive(Clone, Debug)]
pub(crate) enum ColumnView<'a> {
    Nil,
    Empty,
    Rows(Rows<'a>),
    /// A dict whose values are one cell a row each.
    Named(Vec<(&'a str, Rows<'a>)>),
    /// Anything else.
    Whole,
}
