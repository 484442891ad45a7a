//! The requests of a stream's state, in order of number.

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::position::RequestNo;
use crate::record::RequestEntry;
use crate::request::RequestInfo;

/// Requests by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestTable(HashMap<u64, RequestEntry, FixedState>);

impl RequestTable {
    pub fn get(&self, number: u64) -> Option<&RequestEntry> {
        self.0.get(&number)
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut RequestEntry> {
        self.0.get_mut(&number)
    }

    /// The request with this number. A new one has no rid.
    pub fn entry(&mut self, number: u64) -> &mut RequestEntry {
        self.0.entry(number).or_insert_with(|| {
            let info = RequestInfo::new(RequestNo(number), String::new());
            RequestEntry { info, closed: false, here: false }
        })
    }

    /// In no order.
    pub fn values(&self) -> impl Iterator<Item = &RequestEntry> {
        self.0.values()
    }

    /// In order of number.
    pub fn iter(&self) -> std::vec::IntoIter<&RequestEntry> {
        let mut entries: Vec<&RequestEntry> = self.0.values().collect();
        entries.sort_unstable_by_key(|entry| entry.info.number);
        entries.into_iter()
    }

    pub fn retain(&mut self, mut keeps: impl FnMut(&mut RequestEntry) -> bool) {
        self.0.retain(|_, entry| keeps(entry));
    }
}

impl FromIterator<RequestEntry> for RequestTable {
    /// The last entry with a number counts.
    fn from_iter<I: IntoIterator<Item = RequestEntry>>(entries: I) -> RequestTable {
        RequestTable(entries.into_iter().map(|entry| (entry.info.number.0, entry)).collect())
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
        let table: RequestTable = table.iter().cloned().chain(more).collect();
        assert_eq!(numbers(&table), [1, 3, 4, 5, 6, 7, 9]);
        assert_eq!([3, 6].map(|number| table.get(number).map(|entry| entry.info.rows)), [Some(2), Some(4)]);
    }
}
