//! Rows that were held and go on: each was taken out of its frame as a batch of one row and waited; now they leave in
//! order, before a later row of their request or alone. When to hold and when to release is the caller's.

use crate::batch::Batch;
use crate::edit::{Change, Edit, Tokens};
use crate::error::RowsError;
use crate::row::Finish;
use crate::rows::{Part, Plan};

/// What was held of a request, to go before a row of it.
#[derive(Clone, Copy, Debug)]
pub struct Held<'a> {
    /// The row, which goes last.
    pub row: u32,
    /// The rows before it, oldest first: each a batch of one row, of the same request ([`Batch::take`]).
    pub rows: &'a [Batch],
    /// Whether they become one row with it. Where not, each is a frame of its own. Before a detokenizer a row may be
    /// joined only where the text before and after it is whole, which the caller must know; elsewhere anywhere.
    pub join: bool,
}

/// Frames that leave one after another.
#[derive(Debug, Default)]
pub struct Released {
    /// What goes before the batch: held rows that did not become one with their request's row.
    pub before: Vec<Batch>,
    /// The batch; `None` if no row is left in it.
    pub batch: Option<Batch>,
}

impl Batch {
    /// [Edits](Batch::edit) a batch whose rows have held ones before them. Both lists are ascending by row, one a row.
    ///
    /// Where [`Held::join`] says so and the columns allow it, what was held and the row become one row, in the row's
    /// place, and the row's edit is made to that: new tokens replace all of them, a drop drops all. Else what was held
    /// goes before, in as few frames as the columns allow, and the edit is made to the row; then what goes before keeps
    /// no token and no text that the edit replaces, and its counts are the edit's less what is yet to come. A request's
    /// rows stay in order, and rows of several requests stand side by side where they can.
    ///
    /// The errors: those of an edit; rows that were held of another request, or are more than one or a last row.
    pub fn edit_after(&self, edits: &[Edit], held: &[Held<'_>]) -> Result<Released, RowsError> {
        let mut next = 0;
        for held in held {
            if held.row < next || held.row >= self.rows {
                return Err(RowsError::Row { row: held.row, rows: self.rows });
            }
            next = held.row + 1;
            check(held.rows, self.rid(held.row)).map_err(|name| RowsError::Held {
                row: held.row,
                held: name,
                rid: self.rid(held.row).to_owned(),
            })?;
            unfinished(held.rows)?;
        }
        let mut requests = Vec::new();
        for held in held.iter().filter(|held| !held.rows.is_empty()) {
            let edit = edits.iter().find(|edit| edit.row == held.row);
            requests.push(Request::new(self, held, edit)?);
        }
        if let Ok(batch) = self.edit_instead(edits, &instead(&requests)) {
            return Ok(Released {
                before: side_by_side(requests.into_iter().map(|it| it.before).collect()),
                batch,
            });
        }
        // A joined row that cannot stand in this frame is one before it.
        for request in requests.iter_mut().filter(|request| request.joined.is_some()) {
            let edit = request.edit.take().unwrap_or_default();
            let last = request.joined.take().map(|joined| joined.edit(&[edit])).transpose()?.flatten();
            request.before.extend(last);
            request.gone = true;
        }
        let batch = self.edit_instead(edits, &instead(&requests))?;
        Ok(Released { before: side_by_side(requests.into_iter().map(|it| it.before).collect()), batch })
    }

    /// What was held of several requests, as it came, where no later row of theirs is there to take it along: one list of
    /// batches of one row a request, oldest first. `join` as in [`Held::join`]. The frames leave one after another.
    pub fn release(held: &[&[Batch]], join: bool) -> Result<Vec<Batch>, RowsError> {
        let mut requests = Vec::new();
        for rows in held.iter().filter(|rows| !rows.is_empty()) {
            let rid = rows[0].rid(0);
            check(rows, rid).map_err(|name| RowsError::Held { row: 0, held: name, rid: rid.to_owned() })?;
            unfinished(&rows[..rows.len() - 1])?;
            let parts: Vec<_> = rows.iter().map(Part::from).collect();
            requests.push(pieces(&parts, join)?);
        }
        Ok(side_by_side(requests))
    }

    /// [Edits](Batch::edit) a batch in which others stand in the place of some of its rows, each a batch of one row of the
    /// same request; without one the row leaves. `instead` is ascending by row, too, and an edit is made to what stands there.
    pub fn edit_instead(
        &self,
        edits: &[Edit],
        instead: &[(u32, Option<&Batch>)],
    ) -> Result<Option<Batch>, RowsError> {
        let mut parts = vec![self];
        parts.extend(instead.iter().filter_map(|(_, other)| *other));
        let (mut changes, mut next) = (Vec::new(), 0);
        for edit in edits {
            if edit.row < next || edit.row >= self.rows {
                return Err(RowsError::Row { row: edit.row, rows: self.rows });
            }
            next = edit.row + 1;
            let other = instead.iter().find(|(row, _)| *row == edit.row);
            changes.push(match other.and_then(|(_, other)| *other) {
                Some(other) => Change::new(other, &Edit { row: 0, ..edit.clone() })?,
                None => Change::new(self, edit)?,
            });
        }
        let mut plan = Plan::new(parts);
        let (mut part, mut edits) = (0, edits.iter().zip(&changes).peekable());
        let mut instead = instead.iter().peekable();
        for row in 0..self.rows {
            let edit = edits.next_if(|(edit, _)| edit.row == row);
            let other = instead.next_if(|(of, _)| *of == row);
            let from = match other {
                Some((_, Some(_))) => {
                    part += 1;
                    (part, 0)
                }
                _ => (0, row),
            };
            let is_dropped = edit.is_some_and(|(edit, _)| edit.tokens == Tokens::Drop);
            if !is_dropped && !matches!(other, Some((_, None))) {
                plan.push(&[from], edit.map(|(_, change)| change));
            }
        }
        match plan.write() {
            Ok(batch) => Ok(Some(batch)),
            Err(RowsError::NoRows) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// What stands in the place of rows.
fn instead(requests: &[Request]) -> Vec<(u32, Option<&Batch>)> {
    let others = requests.iter().filter(|request| request.gone || request.joined.is_some());
    others.map(|request| (request.row, request.joined.as_ref().filter(|_| !request.gone))).collect()
}

/// What was held of a request, and its row.
pub(crate) struct Request {
    row: u32,
    /// Frames before the batch, each of one row.
    before: Vec<Batch>,
    /// The row with what was held before it, where they became one.
    joined: Option<Batch>,
    /// What is to be done with that.
    edit: Option<Edit>,
    /// The row is in `before` and leaves the batch.
    gone: bool,
}

impl Request {
    fn new(batch: &Batch, held: &Held<'_>, edit: Option<&Edit>) -> Result<Request, RowsError> {
        let row = [held.row];
        let mut parts: Vec<_> = held.rows.iter().map(Part::from).collect();
        parts.push(Part { batch, rows: Some(&row) });
        let mut before = pieces(&parts, held.join)?;
        let last = before.pop();
        // Where nothing was joined the row stays where it is.
        let joined = last.filter(|_| before.len() < held.rows.len());
        if let Some(edit) = edit {
            before = emptied(before, edit, batch.completion_tokens(held.row))?;
        }
        let edit = edit.map(|edit| Edit { row: 0, ..edit.clone() });
        Ok(Request { row: held.row, before, joined, edit, gone: false })
    }
}

/// Rows of one request in as few pieces as their columns allow; with `join` false, as they are.
fn pieces(parts: &[Part<'_>], join: bool) -> Result<Vec<Batch>, RowsError> {
    if join && let Ok(all) = Batch::join(parts) {
        return Ok(vec![all]);
    }
    let mut pieces: Vec<Batch> = Vec::new();
    for part in parts {
        let one = Batch::join(&[*part])?;
        let joined = match pieces.last() {
            Some(last) if join => Batch::join(&[Part::from(last), Part::from(&one)]).ok(),
            _ => None,
        };
        match (joined, pieces.last_mut()) {
            (Some(joined), Some(last)) => *last = joined,
            _ => pieces.push(one),
        }
    }
    Ok(pieces)
}

/// What goes before an edited row and did not become one with it, without what the edit replaces.
fn emptied(before: Vec<Batch>, edit: &Edit, count: Option<u64>) -> Result<Vec<Batch>, RowsError> {
    if edit.tokens == Tokens::Drop {
        return Ok(Vec::new());
    }
    let text = edit.text.as_ref().map(|_| String::new());
    let one = |batch: Batch| {
        let (tokens, completion_tokens) = match &edit.tokens {
            Tokens::Keep => {
                let counts = edit.completion_tokens.zip(count).zip(batch.completion_tokens(0));
                (Tokens::Keep, counts.map(|((new, old), its)| its.saturating_add(new).saturating_sub(old)))
            }
            Tokens::Delta(ids) => {
                (Tokens::Empty, edit.completion_tokens.map(|count| count.saturating_sub(ids.len() as u64)))
            }
            _ => (Tokens::Empty, edit.completion_tokens),
        };
        batch.edit(&[Edit { row: 0, tokens, text: text.clone(), finish: None, completion_tokens }])
    };
    before.into_iter().filter_map(|batch| one(batch).transpose()).collect()
}

/// Frames of what leaves of each request in order: the first of each, then the second of each, and so on, in one frame
/// where they can stand side by side.
fn side_by_side(requests: Vec<Vec<Batch>>) -> Vec<Batch> {
    let mut frames = Vec::new();
    let mut requests: Vec<_> = requests.into_iter().map(Vec::into_iter).collect();
    loop {
        let mut rows: Vec<Batch> = requests.iter_mut().filter_map(Iterator::next).collect();
        match rows.len() {
            0 => return frames,
            1 => frames.append(&mut rows),
            _ => match Batch::join(&rows.iter().map(Part::from).collect::<Vec<_>>()) {
                Ok(frame) => frames.push(frame),
                Err(_) => frames.append(&mut rows),
            },
        }
    }
}

/// Whether each is one row of that request. The error names what it is of, if that is one row.
fn check(rows: &[Batch], rid: &str) -> Result<(), String> {
    match rows.iter().find(|batch| batch.rows != 1 || batch.rid(0) != rid) {
        None => Ok(()),
        Some(wrong) if wrong.rows == 1 => Err(wrong.rid(0).to_owned()),
        Some(_) => Err(String::new()),
    }
}

fn unfinished(rows: &[Batch]) -> Result<(), RowsError> {
    match rows.iter().find(|batch| batch.finish(0) != Finish::Running) {
        Some(last) => Err(RowsError::AfterFinish { rid: last.rid(0).to_owned() }),
        None => Ok(()),
    }
}
