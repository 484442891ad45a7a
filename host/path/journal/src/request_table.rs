//! The requests of a stream's state, in order of number.

use crate::position::RequestNo;
use crate::record::RequestEntry;
use crate::request::RequestInfo;

/// Requests in order of number. Numbers mostly grow, and a row mostly has the request that follows that of the row before: neither is
/// searched for.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestTable {
    numbers: Vec<u64>,
    /// The entry of each number.
    entries: Vec<RequestEntry>,
    /// Index of the request found last.
    last: usize,
}

impl RequestTable {
    pub fn get(&self, number: u64) -> Option<&RequestEntry> {
        self.entries.get(self.numbers.binary_search(&number).ok()?)
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut RequestEntry> {
        let at = self.find(number).ok()?;
        self.entries.get_mut(at)
    }

    /// The request with this number. A new one has no rid.
    pub fn entry(&mut self, number: u64) -> &mut RequestEntry {
        let at = self.find(number).unwrap_or_else(|at| {
            let info = RequestInfo::new(RequestNo(number), String::new());
            self.numbers.insert(at, number);
            self.entries.insert(at, RequestEntry { info, closed: false, here: false });
            self.last = at;
            at
        });
        &mut self.entries[at]
    }

    fn index(&mut self) {
        self.numbers = self.entries.iter().map(|entry| entry.info.number.0).collect();
        self.last = 0;
    }

    fn find(&mut self, number: u64) -> Result<usize, usize> {
        for at in [self.last + 1, self.last] {
            if self.numbers.get(at) == Some(&number) {
                self.last = at;
                return Ok(at);
            }
        }
        let found = self.numbers.binary_search(&number);
        self.last = found.unwrap_or(self.last);
        found
    }

    /// In order of number.
    pub fn iter(&self) -> impl Iterator<Item = &RequestEntry> + Clone {
        self.entries.iter()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut RequestEntry> {
        self.entries.iter_mut()
    }

    pub fn retain(&mut self, keeps: impl FnMut(&RequestEntry) -> bool) {
        self.entries.retain(keeps);
        self.index();
    }
}

impl IntoIterator for RequestTable {
    type Item = RequestEntry;
    type IntoIter = std::vec::IntoIter<RequestEntry>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

impl FromIterator<RequestEntry> for RequestTable {
    /// Entries in any order. Of several entries with a number, the last counts.
    fn from_iter<I: IntoIterator<Item = RequestEntry>>(entries: I) -> RequestTable {
        let mut table = RequestTable { entries: entries.into_iter().collect(), ..RequestTable::default() };
        table.entries.sort_by_key(|entry| entry.info.number);
        table.entries.dedup_by(|later, earlier| {
            let is_same = later.info.number == earlier.info.number;
            if is_same {
                std::mem::swap(later, earlier);
            }
            is_same
        });
        table.index();
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(table: &RequestTable) -> Vec<u64> {
        table.iter().map(|entry| entry.info.number.0).collect()
    }

    #[test]
    fn requests_are_found_and_in_order_whatever_the_order_in_which_they_came() {
        let mut table = RequestTable::default();
        for number in [5, 6, 7, 3, 9, 8, 1 << 40, 6] {
            table.entry(number).info.rows += number;
        }
        assert_eq!(numbers(&table), [3, 5, 6, 7, 8, 9, 1 << 40]);
        for number in [9, 3, 5, 6, 8, 7, 1 << 40, 5] {
            let rows = if number == 6 { 12 } else { number };
            assert_eq!(table.get(number).map(|entry| entry.info.rows), Some(rows));
            assert_eq!(table.get_mut(number).map(|entry| entry.info.rows), Some(rows));
        }
        assert!(table.get(4).is_none() && table.get_mut(4).is_none());
        table.retain(|entry| entry.info.number.0 % 2 == 1);
        assert_eq!(numbers(&table), [3, 5, 7, 9]);
        table.entry(4);
        assert_eq!(numbers(&table), [3, 4, 5, 7, 9]);
        assert!(table.get_mut(6).is_none() && table.get_mut(7).is_some());
        let entry = |number, rows| {
            let info = RequestInfo { rows, ..RequestInfo::new(RequestNo(number), String::new()) };
            RequestEntry { info, closed: false, here: false }
        };
        let more = [entry(6, 1), entry(3, 2), entry(1, 3), entry(6, 4)];
        let table: RequestTable = table.into_iter().chain(more).collect();
        assert_eq!(numbers(&table), [1, 3, 4, 5, 6, 7, 9]);
        assert_eq!([3, 6].map(|number| table.get(number).map(|entry| entry.info.rows)), [Some(2), Some(4)]);
    }
}
