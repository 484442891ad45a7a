//! The cells of a request's rows as one cell, by the column's rule.

use afterbay_pickle::Source;

use crate::columns::{Absent, Column, Join, Neutral};
use crate::error::RowsError;
use crate::layouts::Field;
use crate::mask::Mask;
use crate::sink::Sink;
use crate::value::Value;

/// What writing a column goes by.
#[derive(Clone, Copy)]
pub(crate) struct Rule<'a> {
    pub(crate) name: &'a str,
    pub(crate) join: Join,
    pub(crate) absent: Absent,
    pub(crate) per_token: Option<Neutral>,
}

impl<'a> Rule<'a> {
    pub(crate) fn new(field: &'a Field) -> Rule<'a> {
        // A field that is not in the table is joined never, and not made up.
        let unknown = Column { name: "", join: Join::Never, absent: Absent::Never, per_token: None };
        let &Column { join, absent, per_token, .. } = field.column.unwrap_or(&unknown);
        Rule { name: &field.name, join, absent, per_token }
    }

    /// Whether cells are read and not only copied, where rows are joined or edited.
    pub(crate) fn reads_cells(&self) -> bool {
        let copied = matches!(self.join, Join::First | Join::Last | Join::Latest | Join::Never);
        !copied || self.per_token.is_some()
    }

    pub(crate) fn shape_error(&self) -> RowsError {
        RowsError::Shape { name: self.name.to_owned() }
    }
}

/// Writes what stands for a row without a cell.
pub(crate) fn absent<'a>(sink: &mut impl Sink<'a>, rule: Rule<'_>) -> Result<(), RowsError> {
    match rule.absent {
        Absent::Nil => {
            sink.nil();
            Ok(())
        }
        Absent::Empty => sink.list(0, |_| Ok(())),
        Absent::Never => Err(rule.shape_error()),
    }
}

/// A cell, and the tree it is from where it is a pickle's.
pub(crate) type Cell<'a> = (Value<'a>, Option<Source>);

/// Why the cells of a request were not joined.
pub(crate) enum Joining {
    /// The column's rule does not allow it, or a cell is not of the type it goes by.
    Cannot,
    Failed(RowsError),
}

impl From<RowsError> for Joining {
    fn from(error: RowsError) -> Joining {
        Joining::Failed(error)
    }
}

/// Writes the one cell of several rows of a request. A row may have none.
pub(crate) fn join<'a>(
    sink: &mut impl Sink<'a>,
    rule: Rule<'_>,
    cells: &[Option<Cell<'a>>],
) -> Result<(), Joining> {
    let mut some = cells.iter().flatten().copied().filter(|(value, _)| !value.is_nil());
    let one = match rule.join {
        _ if cells.len() == 1 => cells[0],
        Join::First => cells[0],
        Join::Last => cells[cells.len() - 1],
        Join::Latest => some.next_back().or(cells[0]),
        Join::Never if some.next().is_some() => return Err(Joining::Cannot),
        Join::Never => cells[0],
        Join::Concat | Join::Ids | Join::Text | Join::Mask | Join::Named | Join::Frame => {
            let some: Vec<_> = some.collect();
            match some[..] {
                [] => cells[0],
                [one] => Some(one),
                _ => return concat(sink, rule.join, &some),
            }
        }
    };
    match one {
        Some((value, source)) => sink.copy(value, source)?,
        None => absent(sink, rule)?,
    }
    Ok(())
}

/// Writes several cells as one, one after another.
fn concat<'a>(sink: &mut impl Sink<'a>, join: Join, cells: &[Cell<'a>]) -> Result<(), Joining> {
    let all = |value: Option<()>| value.ok_or(Joining::Cannot);
    match join {
        Join::Ids => {
            let mut ids = Vec::new();
            cells.iter().try_for_each(|(value, _)| all(value.ids(&mut ids).map(drop)))?;
            sink.ids(&ids, Some(cells[0].0))?;
        }
        Join::Text => {
            let mut text = String::new();
            cells.iter().try_for_each(|(value, _)| all(value.str().map(|it| text.push_str(it))))?;
            sink.str(&text);
        }
        Join::Concat | Join::Mask => {
            let masks = cells.iter().map(|(value, _)| Mask::read(*value)).collect::<Option<Vec<_>>>();
            if let Some(masks) = masks.filter(|_| join == Join::Mask) {
                return Ok(sink.mask(&Mask::concat(masks))?);
            }
            let mut items = Vec::new();
            for &(value, source) in cells {
                items.extend(value.list().ok_or(Joining::Cannot)?.into_iter().map(|item| (item, source)));
            }
            sink.list(items.len(), |sink| {
                items.iter().try_for_each(|&(item, source)| sink.copy(item, source))
            })?;
        }
        _ => return Err(Joining::Cannot),
    }
    Ok(())
}
