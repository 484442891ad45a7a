//! A pickled batch as columns: the fields of the message's object, by name.

use std::sync::{Arc, OnceLock};

use crate::pickle::{Node, NodeId, ParseError, Tree};
use bytes::Bytes;

use crate::bounds::MAX_FIELDS;
use crate::error::WireError;
use crate::kind::BatchKind;
use crate::sglang::layouts::{LayoutField, MessageLayout};
use crate::value::{ColumnCells, ColumnView};

/// The columns of a frame, in the order of its layout. Those of a frame that this crate wrote are read when they are first
/// needed, because most such frames are only sent.
#[derive(Debug)]
pub(crate) struct Pickled {
    frame: Bytes,
    fields: usize,
    columns: OnceLock<PickledColumns>,
}

#[derive(Debug)]
struct PickledColumns {
    tree: Tree,
    values: Vec<NodeId>,
}

impl Pickled {
    /// The memory of the nodes in bytes. They count once they were read.
    pub(crate) fn memory(&self) -> usize {
        let columns = self.columns.get();
        columns.map_or(0, |it| it.tree.memory() + it.values.capacity() * size_of::<NodeId>())
    }

    /// A frame with so many fields that this crate wrote, unread.
    pub(crate) fn written(frame: Bytes, fields: usize) -> Pickled {
        Pickled { frame, fields, columns: OnceLock::new() }
    }

    fn columns(&self) -> &PickledColumns {
        self.columns.get_or_init(|| {
            let values_of = |tree: Tree| {
                let fields = tree.pairs(tree.object(tree.root())?.fields?)?;
                let values: Vec<_> = fields.map(|(_, value)| value).collect();
                (values.len() == self.fields).then_some(PickledColumns { tree, values })
            };
            match Tree::parse(self.frame.clone()).ok().and_then(values_of) {
                Some(columns) => columns,
                // After a panic the stream continues from its journal. Rows without values would be lost unseen.
                None => unreachable!("a frame that Afterbay wrote cannot be read"),
            }
        })
    }

    /// The tree of the frame.
    pub(crate) fn tree(&self) -> &Tree {
        &self.columns().tree
    }

    /// The protocol that the frame declares. A written frame declares it once, at its head.
    pub(crate) fn protocol(&self) -> u8 {
        let head = || self.frame.get(1).copied().unwrap_or_default();
        self.columns.get().map_or_else(head, |columns| columns.tree.protocol())
    }

    /// Reads the fields of the root object. `known` is a layout to share if it fits.
    pub(crate) fn read(
        tree: Tree,
        kind: BatchKind,
        fields: NodeId,
        known: Option<&Arc<MessageLayout>>,
    ) -> Result<(Pickled, Arc<MessageLayout>), WireError> {
        let pairs = tree.pairs(fields).ok_or(WireError::NotAnObject)?;
        if pairs.len() > MAX_FIELDS {
            return Err(WireError::NotAnObject);
        }
        let fits = |layout: &&Arc<MessageLayout>| {
            let is_name =
                |(name, field): (NodeId, &LayoutField)| tree.text(name) == Some(field.name.as_bytes());
            let names = pairs.clone().map(|(name, _)| name);
            layout.fields.len() == pairs.len() && names.zip(&layout.fields).all(is_name)
        };
        let layout = match known.filter(fits) {
            Some(layout) => Arc::clone(layout),
            None => {
                let names: Option<Vec<&str>> = pairs.clone().map(|(name, _)| tree.str(name)).collect();
                let names = names.ok_or(WireError::NotAnObject)?;
                Arc::new(MessageLayout::new(kind, "", names.into_iter()))
            }
        };
        let values: Vec<NodeId> = pairs.map(|(_, value)| value).collect();
        let (frame, fields) = (tree.pickle().clone(), values.len());
        Ok((Pickled { frame, fields, columns: OnceLock::from(PickledColumns { tree, values }) }, layout))
    }

    pub(crate) fn value(&self, field: usize) -> NodeId {
        self.columns().values[field]
    }

    /// The cells of a column with one per row.
    pub(crate) fn rows(&self, field: usize, rows: u32) -> Option<ColumnCells<'_>> {
        let PickledColumns { tree, values } = self.columns();
        match tree.node(values[field]) {
            Node::List(items) if items.len() as u64 == u64::from(rows) => {
                Some(ColumnCells::Tree(tree, items))
            }
            _ => None,
        }
    }
}

/// The view of a column that is a node.
pub(crate) fn view(tree: &Tree, id: NodeId, rows: u32) -> ColumnView<'_> {
    let cells = |id| match tree.node(id) {
        Node::List(items) if items.len() as u64 == u64::from(rows) => Some(ColumnCells::Tree(tree, items)),
        _ => None,
    };
    match tree.node(id) {
        Node::None => ColumnView::Nil,
        Node::List([]) => ColumnView::Empty,
        Node::Dict(pairs) if pairs.len() <= MAX_FIELDS => {
            let named = pairs.map(|(name, column)| Some((tree.str(name)?, cells(column)?)));
            named.collect::<Option<_>>().map_or(ColumnView::Whole, ColumnView::Named)
        }
        _ => cells(id).map_or(ColumnView::Whole, ColumnView::Cells),
    }
}

/// The module of SGLang's messages, in every known version.
pub(crate) const MODULE: &str = "sglang.srt.managers.io_struct";

/// A message of this kind without fields, as a model for writing: a msgspec struct, or a dataclass as before 0.5.15.
pub(crate) fn model(kind: BatchKind, dataclass: bool) -> Result<Tree, ParseError> {
    let class = format!("c{MODULE}\n{}\n", kind.class());
    let pickle = match dataclass {
        true => [b"\x80\x04", class.as_bytes(), b")\x81}b."].concat(),
        false => [b"\x80\x05cmsgspec._utils\nrebuild\n(", class.as_bytes(), b"}tR."].concat(),
    };
    Tree::parse(pickle.into())
}
