//! A table of the live requests of a stream, found by `rid`. Does not know what the ledger stores per request.
//!
//! A scheduler's step has nearly the same requests as the step before, in nearly the same order. So the table first compares a
//! row's `rid` with the request that followed in the last batch, and hashes the `rid` only if they differ.

use crate::RequestSlot;
use foldhash::fast::FixedState;
use hashbrown::HashTable;
use std::hash::BuildHasher;

struct Entry<T> {
    rid: Box<str>,
    /// The index of the request's row in the last batch with a row of the request.
    row: usize,
    request: T,
}

/// Requests by slot and by `rid`.
pub struct Requests<T> {
    slots: Vec<Option<Entry<T>>>,
    free: Vec<RequestSlot>,
    by_rid: HashTable<RequestSlot>,
    hasher: FixedState,
    /// The slots of the last batch's rows, in order.
    last: Vec<RequestSlot>,
    /// The slots of this batch's rows so far.
    now: Vec<RequestSlot>,
    /// Index in `last` of the request expected next.
    cursor: usize,
}

impl<T> Requests<T> {
    /// An empty table.
    pub fn new() -> Self {
        Requests {
            slots: Vec::new(),
            free: Vec::new(),
            by_rid: HashTable::new(),
            hasher: FixedState::with_seed(0x0af7_e4ba),
            last: Vec::new(),
            now: Vec::new(),
            cursor: 0,
        }
    }

    /// How many requests are live.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Begins a new batch. The first row is expected to have the same request as the first row of the last batch.
    pub fn begin_batch(&mut self) {
        std::mem::swap(&mut self.last, &mut self.now);
        self.now.clear();
        self.cursor = 0;
    }

    /// The requests of the batch's rows so far, in order.
    #[inline]
    pub fn rows(&self) -> &[RequestSlot] {
        &self.now
    }

    /// The live request of the batch's next row, if there is one with this `rid`.
    #[inline]
    pub fn find_next(&mut self, rid: &[u8]) -> Option<RequestSlot> {
        match self.last.get(self.cursor) {
            Some(&expected) if self.has_rid(expected, rid) => {
                self.cursor += 1;
                Some(self.take_row(expected))
            }
            _ => self.find_unexpected(rid),
        }
    }

    #[inline(never)]
    fn find_unexpected(&mut self, rid: &[u8]) -> Option<RequestSlot> {
        // The expected request may have ended.
        if let Some(&following) = self.last.get(self.cursor + 1)
            && self.has_rid(following, rid)
        {
            self.cursor += 2;
            return Some(self.take_row(following));
        }
        let found = self.find(rid)?;
        let row = self.slots[found.0 as usize].as_ref()?.row;
        if self.last.get(row) == Some(&found) {
            self.cursor = row + 1;
        }
        Some(self.take_row(found))
    }

    #[inline]
    fn has_rid(&self, slot: RequestSlot, rid: &[u8]) -> bool {
        self.rid(slot).is_some_and(|known| known.as_bytes() == rid)
    }

    /// Notes that the batch's next row is the request's.
    #[inline]
    fn take_row(&mut self, slot: RequestSlot) -> RequestSlot {
        if let Some(Some(entry)) = self.slots.get_mut(slot.0 as usize) {
            entry.row = self.now.len();
        }
        self.now.push(slot);
        slot
    }

    /// The live request with this `rid`.
    pub fn find(&self, rid: &[u8]) -> Option<RequestSlot> {
        let hash = self.hasher.hash_one(rid);
        self.by_rid.find(hash, |slot| self.has_rid(*slot, rid)).copied()
    }

    /// Adds a request. No live request may have this `rid`.
    pub fn insert(&mut self, rid: &str, request: T) -> RequestSlot {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            RequestSlot(u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX))
        });
        self.slots[slot.0 as usize] = Some(Entry { rid: rid.into(), row: self.now.len(), request });
        let (slots, hasher) = (&self.slots, &self.hasher);
        self.by_rid.insert_unique(hasher.hash_one(rid.as_bytes()), slot, |slot| {
            slots[slot.0 as usize].as_ref().map_or(0, |entry| hasher.hash_one(entry.rid.as_bytes()))
        });
        self.now.push(slot);
        slot
    }

    /// Removes a request, and returns it with its `rid`.
    pub fn remove(&mut self, slot: RequestSlot) -> Option<(Box<str>, T)> {
        let entry = self.slots.get_mut(slot.0 as usize)?.take()?;
        let hash = self.hasher.hash_one(entry.rid.as_bytes());
        if let Ok(known) = self.by_rid.find_entry(hash, |known| *known == slot) {
            known.remove();
        }
        self.free.push(slot);
        Some((entry.rid, entry.request))
    }

    /// The `rid` of the request in this slot.
    pub fn rid(&self, slot: RequestSlot) -> Option<&str> {
        self.slots.get(slot.0 as usize)?.as_ref().map(|entry| &*entry.rid)
    }

    /// The request in this slot.
    pub fn get(&self, slot: RequestSlot) -> Option<&T> {
        self.slots.get(slot.0 as usize)?.as_ref().map(|entry| &entry.request)
    }

    /// The request in this slot.
    pub fn get_mut(&mut self, slot: RequestSlot) -> Option<&mut T> {
        self.slots.get_mut(slot.0 as usize)?.as_mut().map(|entry| &mut entry.request)
    }

    /// All live requests.
    pub fn iter(&self) -> impl Iterator<Item = (RequestSlot, &str, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, entry)| {
            let entry = entry.as_ref()?;
            Some((RequestSlot(index as u32), &*entry.rid, &entry.request))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_finds_its_request_whatever_the_order_of_the_batch() {
        let mut requests = Requests::new();
        let names: Vec<String> = (0..100).map(|i| format!("req-{i}")).collect();
        requests.begin_batch();
        let slots: Vec<RequestSlot> = names.iter().map(|name| requests.insert(name, ())).collect();
        for stride in [1, 3, 7, 99] {
            requests.begin_batch();
            for step in 0..100 {
                let at = step * stride % 100;
                assert_eq!(requests.find_next(names[at].as_bytes()), Some(slots[at]));
            }
        }
    }

    #[test]
    fn a_table_remembers_the_rows_of_two_batches_only() {
        let mut requests = Requests::new();
        requests.insert("a", ());
        for _ in 0..10 {
            requests.begin_batch();
            assert!(requests.find_next(b"a").is_some());
        }
        assert_eq!((requests.last.len(), requests.now.len()), (1, 1));
    }

    #[test]
    fn a_removed_request_is_not_found_and_its_slot_is_used_again() {
        let mut requests = Requests::new();
        requests.begin_batch();
        let a = requests.insert("a", 1);
        let b = requests.insert("b", 2);
        assert_eq!(requests.remove(a), Some(("a".into(), 1)));
        assert_eq!(requests.find(b"a"), None);
        requests.begin_batch();
        assert_eq!(requests.find_next(b"a"), None);
        assert_eq!(requests.find_next(b"b"), Some(b));
        let c = requests.insert("c", 3);
        assert_eq!(requests.find(b"c"), Some(c));
        assert_eq!((requests.len(), requests.rid(c)), (2, Some("c")));
    }
}
