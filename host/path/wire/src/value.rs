//! A value of a frame, msgpack or pickle, read in place. The meaning of columns is elsewhere.

use afterbay_types::TopLogprobs;
use std::ops::Range;
use std::slice::ChunksExact;

use crate::pickle::{Node, NodeId, Tree};

use crate::ids::Ids;
use crate::pack::{self, CellSpans, INT, IdItems, LIST, MAP, NIL, OTHER, PackValue, STR, TYPES, Types};

/// A value: the bytes of one msgpack value (structure checked), or a node of a pickle's tree.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RawValue<'a> {
    Packed(&'a [u8]),
    Tree(&'a Tree, NodeId),
}

impl<'a> RawValue<'a> {
    #[inline]
    pub(crate) fn is_nil(self) -> bool {
        match self {
            RawValue::Packed(bytes) => bytes[0] == 0xc0,
            RawValue::Tree(tree, id) => tree.is_none(id),
        }
    }

    pub(crate) fn bool(self) -> Option<bool> {
        match self {
            RawValue::Packed(bytes) => match pack::item(bytes)? {
                PackValue::Bool(bool) => Some(bool),
                _ => None,
            },
            RawValue::Tree(tree, id) => tree.bool(id),
        }
    }

    #[inline]
    pub(crate) fn int(self) -> Option<i64> {
        match self {
            RawValue::Packed(bytes) => pack::int(bytes),
            RawValue::Tree(tree, id) => tree.int(id),
        }
    }

    /// The value of a float or an int.
    pub(crate) fn float(self) -> Option<f64> {
        match self {
            RawValue::Packed(bytes) => match pack::item(bytes)? {
                PackValue::Float(float) => Some(float),
                PackValue::Int(int) => Some(int as f64),
                _ => None,
            },
            RawValue::Tree(tree, id) => tree.float(id).or_else(|| tree.int(id).map(|int| int as f64)),
        }
    }

    pub(crate) fn str(self) -> Option<&'a str> {
        match self {
            RawValue::Packed(bytes) => std::str::from_utf8(pack::str_bytes(bytes)?).ok(),
            RawValue::Tree(tree, id) => tree.str(id),
        }
    }

    /// The value's type, as a set of one.
    pub(crate) fn types(self) -> Types {
        self.types_and_weight().0
    }

    /// The cost of a value that a pickle may repeat many times: its items, entries, ids or bytes. 0 for msgpack, which
    /// cannot repeat a value.
    pub(crate) fn weight(self) -> usize {
        self.types_and_weight().1
    }

    #[inline]
    fn types_and_weight(self) -> (Types, usize) {
        match self {
            RawValue::Packed(bytes) => (TYPES[bytes[0] as usize], 0),
            RawValue::Tree(tree, id) if let Some(text) = tree.text(id) => (STR, text.len()),
            RawValue::Tree(tree, id) => match tree.node(id) {
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

    /// Whether [`RawValue::str`] returns a text.
    #[inline]
    pub(crate) fn is_text(self) -> bool {
        // Nearly all texts are ASCII, which is much cheaper to check.
        self.str_bytes().is_some_and(|text| text.is_ascii() || std::str::from_utf8(text).is_ok())
    }

    /// The bytes of a str, which may be invalid UTF-8.
    #[inline]
    pub(crate) fn str_bytes(self) -> Option<&'a [u8]> {
        match self {
            RawValue::Packed(bytes) => pack::str_bytes(bytes),
            RawValue::Tree(tree, id) => tree.text(id),
        }
    }

    /// The value of a str key in a map.
    pub(crate) fn get(self, key: &str) -> Option<RawValue<'a>> {
        match self {
            RawValue::Packed(bytes) => {
                let PackValue::Map(len, body) = pack::item(bytes)? else { return None };
                let mut values = pack::items(body, 2 * len);
                while let (Some(name), Some(value)) = (values.next(), values.next()) {
                    if pack::item(name) == Some(PackValue::Str(key.as_bytes())) {
                        return Some(RawValue::Packed(value));
                    }
                }
                None
            }
            RawValue::Tree(tree, id) => Some(RawValue::Tree(tree, tree.get(id, key)?)),
        }
    }

    /// The items of a list.
    pub(crate) fn list(self) -> Option<Vec<RawValue<'a>>> {
        match self {
            RawValue::Packed(bytes) => match pack::item(bytes)? {
                PackValue::Array(len, body) => Some(pack::items(body, len).map(RawValue::Packed).collect()),
                _ => None,
            },
            RawValue::Tree(tree, id) => match tree.node(id) {
                Node::List(items) => Some(items.iter().map(|&item| RawValue::Tree(tree, item)).collect()),
                _ => None,
            },
        }
    }

    /// Whether the value is an id array: an `array('q')`, or in a pickle a list of ints.
    pub(crate) fn is_ids(self) -> bool {
        match self {
            RawValue::Packed(bytes) => pack::id_items(bytes).is_some(),
            RawValue::Tree(tree, id) => match tree.node(id) {
                Node::List(items) => items.iter().all(|&item| tree.int(item).is_some()),
                _ => tree.ids_len(id).is_some(),
            },
        }
    }

    /// The number of ids in an id array.
    #[inline]
    pub(crate) fn id_count(self) -> Option<usize> {
        match self {
            RawValue::Packed(bytes) => pack::id_items(bytes).map(IdItems::count),
            RawValue::Tree(tree, id) => tree.ids_len(id),
        }
    }

    /// The ids of an id array in the usual form: 8 bytes each, little-endian.
    #[inline]
    pub(crate) fn usual_ids(self) -> Option<&'a [u8]> {
        match self {
            RawValue::Packed(bytes) => pack::usual_ids(bytes),
            RawValue::Tree(tree, id) => tree.id_bytes(id),
        }
    }

    /// Appends the ids of an id array, and returns their number.
    #[inline]
    pub(crate) fn ids(self, out: &mut Vec<i64>) -> Option<usize> {
        match self {
            RawValue::Packed(bytes) => {
                let ids = pack::id_items(bytes)?;
                ids.push_to(out);
                Some(ids.count())
            }
            RawValue::Tree(tree, id) => tree.ids(id, out),
        }
    }
}

/// Appends the most probable tokens of a row, of which each token has a list of logprobs and a list of ids, or nil. `None`: the
/// lists have another form.
pub(crate) fn top_logprobs(values: RawValue<'_>, ids: RawValue<'_>, out: &mut TopLogprobs) -> Option<()> {
    let (values, ids) = (values.list()?, ids.list()?);
    if values.len() != ids.len() {
        return None;
    }
    for (values, ids) in values.into_iter().zip(ids) {
        if !values.is_nil() && !ids.is_nil() {
            for (value, id) in values.list()?.into_iter().zip(ids.list()?) {
                out.logprobs.push(value.float()? as f32);
                out.ids.push(id.int()?);
            }
        }
        out.end_place();
    }
    Some(())
}

/// The cells of a column, one per row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ColumnCells<'a> {
    Packed { frame: &'a [u8], starts: &'a [u32], cells: CellSpans },
    Tree(&'a Tree, &'a [NodeId]),
}

impl<'a> ColumnCells<'a> {
    /// The cell of an existing row.
    #[inline]
    pub(crate) fn get(self, row: u32) -> RawValue<'a> {
        match self {
            ColumnCells::Packed { frame, starts, cells } => {
                let (start, end) = cells.span(starts, row, row + 1);
                RawValue::Packed(&frame[start..end])
            }
            ColumnCells::Tree(tree, items) => RawValue::Tree(tree, items[row as usize]),
        }
    }

    /// The first cell, if it shows the type and length of all cells: msgpack with equal headers.
    #[inline]
    pub(crate) fn model(self) -> Option<RawValue<'a>> {
        match self {
            ColumnCells::Packed { cells: CellSpans::Uniform { width: 2.., .. }, .. } => Some(self.get(0)),
            _ => None,
        }
    }

    /// The bytes of all cells, and the width of each, if there is a [`ColumnCells::model`].
    #[inline]
    fn uniform(self, rows: u32) -> Option<(&'a [u8], usize)> {
        match self {
            ColumnCells::Packed {
                frame, cells: CellSpans::Uniform { start, width: width @ 2.. }, ..
            } => Some((&frame[start as usize..(start + rows * width) as usize], width as usize)),
            _ => None,
        }
    }

    /// The bytes of each cell, if there is a [`ColumnCells::model`].
    #[inline]
    fn alike(self, rows: u32) -> Option<ChunksExact<'a, u8>> {
        self.uniform(rows).map(|(cells, width)| cells.chunks_exact(width))
    }

    /// The bytes of all cells, the width of each, and the start of its text, if the headers show that all are texts of one length.
    pub(crate) fn uniform_texts(self, rows: u32) -> Option<(&'a [u8], usize, usize)> {
        let (cells, width) = self.uniform(rows)?;
        let text = self.model()?.str_bytes()?;
        Some((cells, width, width - text.len()))
    }

    /// Whether all cells are ASCII texts, as far as nodes or equal headers show it.
    pub(crate) fn are_ascii(self, rows: u32) -> bool {
        if let ColumnCells::Tree(tree, items) = self {
            return tree.ascii_len(items).is_some();
        }
        let Some((cells, _, text)) = self.uniform_texts(rows) else { return false };
        // The headers are equal. To count over all cells is much cheaper than to look at each.
        pack::non_ascii(cells) == rows as usize * pack::non_ascii(&cells[..text])
    }

    /// The number of ids of each cell, if the headers show that all cells are id arrays of one length in the usual form.
    pub(crate) fn ids_each(self, rows: u32) -> Option<usize> {
        match self {
            ColumnCells::Packed { .. } => {
                let (cells, width) = self.uniform(rows)?;
                self.model().filter(|_| pack::are_usual_ids(cells, width))?.id_count()
            }
            ColumnCells::Tree(tree, items) => tree.equal_ids_len(items),
        }
    }

    /// Appends the ids of all cells, which are id arrays, and the end of each. `each` is the cells' [`ColumnCells::ids_each`].
    pub(crate) fn ids(self, rows: u32, each: Option<usize>, out: &mut Ids) {
        if let (Some(count), Some(cells)) = (each, self.alike(rows)) {
            // This path computes no cell's position and length, and reserves once.
            let from = out.values.len();
            match count {
                // The usual case: a step with one token per row.
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

    /// Appends the value of each cell that is an int of at least 0. The usual forms are read without a look at each cell's form.
    pub(crate) fn counts(self, rows: u32, out: &mut Vec<Option<u64>>) {
        match self.equal_width(rows) {
            Some((cells, 1)) => {
                out.extend(cells.iter().map(|&byte| (byte < 0x80).then_some(u64::from(byte))));
            }
            // Cells of one width have one header.
            Some((cells, width)) if matches!(cells[0], 0xcc..=0xcf) => {
                out.extend(cells.chunks_exact(width).map(|cell| Some(pack::big_endian(&cell[1..]))));
            }
            _ => out.extend(self.iter(rows).map(|cell| cell.int()?.try_into().ok())),
        }
    }

    /// Whether all cells are nil, as far as bytes or nodes show it without a look into cells of several widths.
    pub(crate) fn are_nil(self, rows: u32) -> bool {
        match self {
            ColumnCells::Tree(tree, items) => tree.are_none(items),
            ColumnCells::Packed { frame, cells: CellSpans::Uniform { start, width: 1 }, .. } => {
                frame[start as usize..(start + rows) as usize].iter().all(|&byte| byte == 0xc0)
            }
            _ => false,
        }
    }

    /// All cells, by row.
    pub(crate) fn iter(self, rows: u32) -> impl Iterator<Item = RawValue<'a>> + Clone {
        (0..rows).map(move |row| self.get(row))
    }

    /// The types of the cells. `None`: their cost exceeds `most`.
    pub(crate) fn types(self, rows: u32, most: usize) -> Option<Types> {
        match self {
            ColumnCells::Packed { cells: CellSpans::Uniform { width: 2.., .. }, .. } => {
                self.model().map(RawValue::types)
            }
            ColumnCells::Packed { frame, cells: CellSpans::Uniform { start, .. }, .. } => {
                let cells = &frame[start as usize..(start + rows) as usize];
                Some(cells.iter().fold(0, |types, &byte| types | TYPES[byte as usize]))
            }
            ColumnCells::Packed { frame, starts, cells: CellSpans::Indexed { first } } => {
                let starts = &starts[first as usize..][..rows as usize];
                Some(starts.iter().fold(0, |types, &at| types | TYPES[frame[at as usize] as usize]))
            }
            ColumnCells::Tree(..) if self.are_nil(rows) => Some(NIL),
            ColumnCells::Tree(tree, items) if let Some(bytes) = tree.ascii_len(items) => {
                (bytes <= most).then_some(STR)
            }
            ColumnCells::Tree(..) => self
                .iter(rows)
                .try_fold((0, most), |(types, left), cell| {
                    let (its, weight) = cell.types_and_weight();
                    Some((types | its, left.checked_sub(weight)?))
                })
                .map(|(types, _)| types),
        }
    }

    /// The bytes of adjacent cells. `None` for a pickle.
    pub(crate) fn bytes(self, run: Range<u32>) -> Option<&'a [u8]> {
        match self {
            ColumnCells::Packed { frame, starts, cells } => {
                let (start, end) = cells.span(starts, run.start, run.end);
                Some(&frame[start..end])
            }
            ColumnCells::Tree(..) => None,
        }
    }

    /// The cells as id arrays.
    pub(crate) fn id_cells(self, rows: u32) -> IdCells<'a> {
        match self {
            ColumnCells::Packed { .. } => match (self.equal_width(rows), self.ids_each(rows)) {
                (Some((cells, width)), Some(count)) => IdCells::Packed { cells, width, bytes: 8 * count },
                _ => IdCells::Any(self),
            },
            ColumnCells::Tree(tree, nodes) if tree.equal_id_bytes(nodes).is_some() => {
                IdCells::Tree(tree, nodes)
            }
            ColumnCells::Tree(..) => IdCells::Any(self),
        }
    }

    /// The bytes of all cells and of each, if they have one width.
    pub(crate) fn equal_width(self, rows: u32) -> Option<(&'a [u8], usize)> {
        match self {
            ColumnCells::Packed { frame, cells: CellSpans::Uniform { start, width }, .. } => {
                Some((&frame[start as usize..(start + rows * width) as usize], width as usize))
            }
            _ => None,
        }
    }

    /// The nodes of adjacent cells. `None` for msgpack.
    pub(crate) fn nodes(self, run: Range<u32>) -> Option<&'a [NodeId]> {
        match self {
            ColumnCells::Packed { .. } => None,
            ColumnCells::Tree(_, items) => Some(&items[run.start as usize..run.end as usize]),
        }
    }
}

/// The cells of a column of id arrays. If all have one length and the usual form, each is found without another look.
#[derive(Clone, Copy)]
pub(crate) enum IdCells<'a> {
    /// Cells of one width, of which the last bytes are the ids.
    Packed {
        cells: &'a [u8],
        width: usize,
        bytes: usize,
    },
    /// Arrays of one length.
    Tree(&'a Tree, &'a [NodeId]),
    Any(ColumnCells<'a>),
}

impl<'a> IdCells<'a> {
    /// The ids of a row, little-endian. `None`: they have not the usual form.
    #[inline]
    pub(crate) fn get(&self, row: u32) -> Option<&'a [u8]> {
        match *self {
            IdCells::Packed { cells, width, bytes } => {
                let end = (row as usize + 1) * width;
                cells.get(end - bytes..end)
            }
            IdCells::Tree(tree, nodes) => tree.array_items(nodes[row as usize]),
            IdCells::Any(cells) => cells.get(row).usual_ids(),
        }
    }
}

/// A column of a batch.
#[derive(Clone, Debug)]
pub(crate) enum ColumnView<'a> {
    Nil,
    Empty,
    Cells(ColumnCells<'a>),
    /// A dict of columns with one cell per row.
    Named(Vec<(&'a str, ColumnCells<'a>)>),
    /// Any other value.
    Whole,
}
