//! The new token ids of a batch's rows.

/// The new token ids of a batch's rows, as two columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ids {
    /// The ids of all rows, in order.
    pub values: Vec<i64>,
    /// The end of each row's ids in `values`.
    pub ends: Vec<u32>,
}

impl Ids {
    /// The ids of one row.
    pub fn row(&self, row: u32) -> &[i64] {
        let end = |row: usize| self.ends.get(row).map_or(self.values.len(), |&end| end as usize);
        let start = (row as usize).checked_sub(1).map_or(0, end);
        self.values.get(start..end(row as usize)).unwrap_or_default()
    }
}
