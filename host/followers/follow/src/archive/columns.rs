//! Columns of lists and maps while rows are added.

use std::sync::Arc;

use arrow_array::builder::{ArrayBuilder, Int32Builder, Int64Builder, StringBuilder};
use arrow_array::{ArrayRef, ListArray, MapArray, StructArray};
use arrow_buffer::{OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType};

use crate::archive::schema::{
    attribute_entries, attributes_field, dropped_fields, gap_fields, item_field, verdict_fields,
};
use afterbay_journal_view::ended::{DroppedTokens, RowGap, RowVerdict};
use afterbay_journal_view::wording;

/// The end of each row's list in the columns of its items.
struct Ends(Vec<i32>);

impl Ends {
    fn new() -> Ends {
        Ends(vec![0])
    }

    /// Ends a row's list after so many items of all rows. The rows of one batch have less than 2^31.
    fn push(&mut self, items: usize) {
        self.0.push(items as i32);
    }

    fn finish(&mut self) -> OffsetBuffer<i32> {
        OffsetBuffer::new(ScalarBuffer::from(std::mem::replace(&mut self.0, vec![0])))
    }
}

/// The verdicts of each row.
pub(crate) struct VerdictColumn {
    ends: Ends,
    plugin: StringBuilder,
    version: StringBuilder,
    digest: StringBuilder,
    verdict: StringBuilder,
    reason: StringBuilder,
    row: Int32Builder,
    forwarded: Int32Builder,
}

impl VerdictColumn {
    pub(crate) fn new() -> VerdictColumn {
        VerdictColumn {
            ends: Ends::new(),
            plugin: StringBuilder::new(),
            version: StringBuilder::new(),
            digest: StringBuilder::new(),
            verdict: StringBuilder::new(),
            reason: StringBuilder::new(),
            row: Int32Builder::new(),
            forwarded: Int32Builder::new(),
        }
    }

    pub(crate) fn push(&mut self, verdicts: &[RowVerdict]) {
        for verdict in verdicts {
            self.plugin.append_value(&verdict.plugin);
            self.version.append_option(verdict.version.as_deref());
            self.digest.append_option(verdict.digest.as_deref());
            self.verdict.append_value(wording::verdict(verdict.verdict));
            self.reason.append_value(&verdict.reason);
            self.row.append_value(verdict.row as i32);
            self.forwarded.append_value(verdict.forwarded as i32);
        }
        self.ends.push(self.row.len());
    }

    pub(crate) fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.plugin.finish()),
            Arc::new(self.version.finish()),
            Arc::new(self.digest.finish()),
            Arc::new(self.verdict.finish()),
            Arc::new(self.reason.finish()),
            Arc::new(self.row.finish()),
            Arc::new(self.forwarded.finish()),
        ];
        structs(&mut self.ends, StructArray::try_new(verdict_fields(), columns, None)?)
    }
}

/// The dropped tokens of each row, by plugin and reason.
pub(crate) struct DroppedColumn {
    ends: Ends,
    plugin: StringBuilder,
    reason: StringBuilder,
    tokens: Int64Builder,
}

impl DroppedColumn {
    pub(crate) fn new() -> DroppedColumn {
        let (plugin, reason) = (StringBuilder::new(), StringBuilder::new());
        DroppedColumn { ends: Ends::new(), plugin, reason, tokens: Int64Builder::new() }
    }

    pub(crate) fn push(&mut self, dropped: &[DroppedTokens]) {
        for by in dropped {
            self.plugin.append_value(&by.plugin);
            self.reason.append_value(&by.reason);
            self.tokens.append_value(by.tokens as i64);
        }
        self.ends.push(self.tokens.len());
    }

    pub(crate) fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.plugin.finish()),
            Arc::new(self.reason.finish()),
            Arc::new(self.tokens.finish()),
        ];
        structs(&mut self.ends, StructArray::try_new(dropped_fields(), columns, None)?)
    }
}

/// The gaps of each row.
pub(crate) struct GapColumn {
    ends: Ends,
    row: Int32Builder,
    expected: Int64Builder,
    got: Int64Builder,
}

impl GapColumn {
    pub(crate) fn new() -> GapColumn {
        let (expected, got) = (Int64Builder::new(), Int64Builder::new());
        GapColumn { ends: Ends::new(), row: Int32Builder::new(), expected, got }
    }

    pub(crate) fn push(&mut self, gaps: &[RowGap]) {
        for gap in gaps {
            self.row.append_value(gap.row as i32);
            self.expected.append_value(gap.expected as i64);
            self.got.append_value(gap.got as i64);
        }
        self.ends.push(self.row.len());
    }

    pub(crate) fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        let columns: Vec<ArrayRef> =
            vec![Arc::new(self.row.finish()), Arc::new(self.expected.finish()), Arc::new(self.got.finish())];
        structs(&mut self.ends, StructArray::try_new(gap_fields(), columns, None)?)
    }
}

fn structs(ends: &mut Ends, items: StructArray) -> Result<ArrayRef, ArrowError> {
    let field = item_field(DataType::Struct(items.fields().clone()));
    Ok(Arc::new(ListArray::try_new(Arc::new(field), ends.finish(), Arc::new(items), None)?))
}

/// The attributes of each row.
pub(crate) struct AttributeColumn {
    ends: Ends,
    names: StringBuilder,
    values: StringBuilder,
}

impl AttributeColumn {
    pub(crate) fn new() -> AttributeColumn {
        AttributeColumn { ends: Ends::new(), names: StringBuilder::new(), values: StringBuilder::new() }
    }

    pub(crate) fn push(&mut self, attributes: &[(String, String)]) {
        for (name, value) in attributes {
            self.names.append_value(name);
            self.values.append_value(value);
        }
        self.ends.push(self.names.len());
    }

    pub(crate) fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        let columns: Vec<ArrayRef> = vec![Arc::new(self.names.finish()), Arc::new(self.values.finish())];
        let entries = StructArray::try_new(attribute_entries(), columns, None)?;
        let field = Arc::new(attributes_field());
        Ok(Arc::new(MapArray::try_new(field, self.ends.finish(), entries, None, false)?))
    }
}
