//! Joins the cells of a request's rows into one cell, by the column's rule.

use crate::pickle::SourceId;

use crate::error::RowsError;
use crate::sglang::columns::{ANY, Absent, Column, Join, Neutral};
use crate::sglang::layouts::LayoutField;
use crate::sglang::mask::Mask;
use crate::sglang::value_writer::ValueWriter;
use crate::value::RawValue;

/// The rules for writing a column.
#[derive(Clone, Copy)]
pub(crate) struct ColumnRule<'a> {
    pub(crate) name: &'a str,
    pub(crate) join: Join,
    pub(crate) absent: Absent,
    pub(crate) per_token: Option<Neutral>,
}

impl<'a> ColumnRule<'a> {
    pub(crate) fn new(field: &'a LayoutField) -> ColumnRule<'a> {
        // A field outside the table is never joined and never made up.
        let unknown =
            Column { name: "", types: ANY, join: Join::Never, absent: Absent::Never, per_token: None };
        let &Column { join, absent, per_token, .. } = field.column.unwrap_or(&unknown);
        ColumnRule { name: &field.name, join, absent, per_token }
    }

    /// Whether joining or editing rows reads the cells instead of only copying them.
    pub(crate) fn reads_cells(&self) -> bool {
        let copied = matches!(self.join, Join::First | Join::Last | Join::Latest | Join::Never);
        !copied || self.per_token.is_some()
    }

    pub(crate) fn shape_error(&self) -> RowsError {
        RowsError::Shape { name: self.name.to_owned() }
    }
}

/// Writes the value for a row without a cell.
pub(crate) fn absent<'a>(out: &mut impl ValueWriter<'a>, rule: ColumnRule<'_>) -> Result<(), RowsError> {
    match rule.absent {
        Absent::Nil => {
            out.nil();
            Ok(())
        }
        Absent::Empty => out.list(0, |_| Ok(())),
        Absent::Never => Err(rule.shape_error()),
    }
}

/// A cell, and the tree that it is from if it is a pickle's.
pub(crate) type SourcedCell<'a> = (RawValue<'a>, Option<SourceId>);

/// The reason why cells were not joined.
pub(crate) enum JoinError {
    /// The column's rule does not allow it, or a cell has another type.
    NotJoinable,
    Failed(RowsError),
}

impl From<RowsError> for JoinError {
    fn from(error: RowsError) -> JoinError {
        JoinError::Failed(error)
    }
}

/// Writes the one cell of several rows of a request. A row may have none.
pub(crate) fn join<'a>(
    out: &mut impl ValueWriter<'a>,
    rule: ColumnRule<'_>,
    cells: &[Option<SourcedCell<'a>>],
) -> Result<(), JoinError> {
    let mut some = cells.iter().flatten().copied().filter(|(value, _)| !value.is_nil());
    let one = match rule.join {
        _ if cells.len() == 1 => cells[0],
        Join::First => cells[0],
        Join::Last => cells[cells.len() - 1],
        Join::Latest => some.next_back().or(cells[0]),
        Join::Never if some.next().is_some() => return Err(JoinError::NotJoinable),
        Join::Never => cells[0],
        Join::Concat | Join::Ids | Join::Text | Join::Mask | Join::Named | Join::Frame => {
            let some: Vec<_> = some.collect();
            match some[..] {
                [] => cells[0],
                [one] => Some(one),
                _ => return concat(out, rule.join, &some),
            }
        }
    };
    match one {
        Some((value, source)) => out.copy(value, source)?,
        None => absent(out, rule)?,
    }
    Ok(())
}

/// Concatenates several cells.
fn concat<'a>(
    out: &mut impl ValueWriter<'a>,
    join: Join,
    cells: &[SourcedCell<'a>],
) -> Result<(), JoinError> {
    let all = |value: Option<()>| value.ok_or(JoinError::NotJoinable);
    match join {
        Join::Ids => {
            let mut ids = Vec::new();
            cells.iter().try_for_each(|(value, _)| all(value.ids(&mut ids).map(drop)))?;
            out.ids(&ids, Some(cells[0].0))?;
        }
        Join::Text => {
            let mut text = String::new();
            cells.iter().try_for_each(|(value, _)| all(value.str().map(|it| text.push_str(it))))?;
            out.str(&text);
        }
        Join::Concat | Join::Mask => {
            let masks = cells.iter().map(|(value, _)| Mask::read(*value)).collect::<Option<Vec<_>>>();
            if let Some(masks) = masks.filter(|_| join == Join::Mask) {
                return Ok(out.mask(&Mask::concat(masks))?);
            }
            let mut items = Vec::new();
            for &(value, source) in cells {
                items.extend(
                    value.list().ok_or(JoinError::NotJoinable)?.into_iter().map(|item| (item, source)),
                );
            }
            out.list(items.len(), |out| items.iter().try_for_each(|&(item, source)| out.copy(item, source)))?;
        }
        _ => return Err(JoinError::NotJoinable),
    }
    Ok(())
}
