//! The table of a stream's live requests, found by slot, by `rid` and by number. Does not know what the ledger stores per request.

use super::roster::Roster;
use afterbay_journal::{JournalRequest, RequestNo};
use afterbay_wire::RidCells;
use foldhash::fast::FixedState;
use hashbrown::HashTable;
use std::collections::VecDeque;
use std::hash::BuildHasher;

/// Ended requests in [`Requests::in_order`], beyond as many as are live, before they are removed.
const ENDED_KEPT: usize = 1024;

/// The live requests. The journal numbers them and chooses their slots.
pub struct Requests<T> {
    /// By slot: the request's number. 0: the slot is free.
    numbers: Vec<u64>,
    /// By slot.
    requests: Vec<Option<T>>,
    /// By slot.
    rids: Vec<Box<str>>,
    by_rid: HashTable<u32>,
    hasher: FixedState,
    /// In order of number, with some that have ended.
    in_order: VecDeque<JournalRequest>,
    live: usize,
    /// Bytes of all rids.
    rid_bytes: usize,
    roster: Roster,
}

impl<T> Requests<T> {
    /// An empty table.
    pub fn new() -> Self {
        Requests {
            numbers: Vec::new(),
            requests: Vec::new(),
            rids: Vec::new(),
            by_rid: HashTable::new(),
            hasher: FixedState::with_seed(0x0af7_e4ba),
            in_order: VecDeque::new(),
            live: 0,
            rid_bytes: 0,
            roster: Roster::default(),
        }
    }

    /// How many requests are live.
    pub fn len(&self) -> usize {
        self.live
    }

    /// The memory of the table in bytes. Slots that were live once count as long as the table lives.
    pub fn memory(&self) -> usize {
        let slot = size_of::<u64>() + size_of::<Option<T>>() + size_of::<Box<str>>();
        let in_order = self.in_order.capacity() * size_of::<JournalRequest>();
        self.requests.capacity() * slot + in_order + self.by_rid.allocation_size() + self.rid_bytes
    }

    /// Begins a batch.
    pub fn begin_batch(&mut self) {
        self.roster.begin();
    }

    /// Ends a batch with these rids.
    pub fn end_batch(&mut self, rids: Option<RidCells<'_>>) {
        self.roster.end(rids);
    }

    /// The requests of the batch's rows so far, in order.
    #[inline]
    pub fn rows(&self) -> &[JournalRequest] {
        self.roster.rows()
    }

    /// Matches the batch's next rows for as long as their rids are those of the last batch. Returns how many rows these are.
    pub fn find_same(&mut self, rids: RidCells<'_>) -> usize {
        let numbers = &self.numbers;
        self.roster.match_same(rids, |request| is_live(numbers, request))
    }

    /// The live request of the batch's next row, if there is one with this `rid`.
    #[inline]
    pub fn find_next(&mut self, rid: &[u8]) -> Option<JournalRequest> {
        if let Some(request) = self.roster.expected().filter(|request| self.has_rid(*request, rid)) {
            self.roster.match_expected(request);
            return Some(request);
        }
        self.find_other(rid)
    }

    /// The live request of a row that has not the expected one.
    fn find_other(&mut self, rid: &[u8]) -> Option<JournalRequest> {
        let behind = self.roster.behind_expected().filter(|request| self.has_rid(*request, rid));
        let found = behind.or_else(|| self.find(rid))?;
        self.roster.match_other(found);
        Some(found)
    }

    /// Whether a request has this `rid`, and has not ended.
    #[inline]
    fn has_rid(&self, request: JournalRequest, rid: &[u8]) -> bool {
        is_live(&self.numbers, request) && self.rids[request.slot()].as_bytes() == rid
    }

    /// The live request with this `rid`.
    pub fn find(&self, rid: &[u8]) -> Option<JournalRequest> {
        let hash = self.hasher.hash_one(rid);
        let slot = *self.by_rid.find(hash, |slot| self.rids[*slot as usize].as_bytes() == rid)?;
        Some(self.handle(slot))
    }

    fn handle(&self, slot: u32) -> JournalRequest {
        JournalRequest::new(RequestNo(self.numbers[slot as usize]), slot)
    }

    /// The live request with this number.
    pub fn numbered(&self, number: u64) -> Option<JournalRequest> {
        let at = self.in_order.binary_search_by_key(&number, |request| request.number().0).ok()?;
        self.in_order.get(at).copied().filter(|request| is_live(&self.numbers, *request))
    }

    /// Adds a request. No live request may have this `rid`, and no request before a later number.
    pub fn insert(&mut self, handle: JournalRequest, rid: &str, request: T) {
        let slot = handle.slot();
        if self.numbers.len() <= slot {
            self.numbers.resize(slot + 1, 0);
            self.requests.resize_with(slot + 1, || None);
            self.rids.resize_with(slot + 1, Box::default);
        }
        self.numbers[slot] = handle.number().0;
        self.requests[slot] = Some(request);
        self.rids[slot] = rid.into();
        self.rid_bytes += rid.len();
        let (rids, hasher) = (&self.rids, &self.hasher);
        self.by_rid.insert_unique(hasher.hash_one(rid.as_bytes()), slot as u32, |slot| {
            hasher.hash_one(rids[*slot as usize].as_bytes())
        });
        self.live += 1;
        if self.in_order.len() > 2 * self.live + ENDED_KEPT {
            let numbers = &self.numbers;
            self.in_order.retain(|request| is_live(numbers, *request));
        }
        self.in_order.push_back(handle);
    }

    /// Gives the batch's next row to a request that was just added.
    pub fn begin_row(&mut self, handle: JournalRequest) {
        self.roster.push(handle);
    }

    /// Removes a request, and returns it with its `rid`.
    pub fn remove(&mut self, handle: JournalRequest) -> Option<(Box<str>, T)> {
        if !is_live(&self.numbers, handle) {
            return None;
        }
        let slot = handle.slot();
        let request = self.requests[slot].take()?;
        self.numbers[slot] = 0;
        let rid = std::mem::take(&mut self.rids[slot]);
        self.rid_bytes -= rid.len();
        let hash = self.hasher.hash_one(rid.as_bytes());
        if let Ok(known) = self.by_rid.find_entry(hash, |known| *known as usize == slot) {
            known.remove();
        }
        self.live -= 1;
        Some((rid, request))
    }

    /// The `rid` of a live request.
    pub fn rid(&self, handle: JournalRequest) -> Option<&str> {
        is_live(&self.numbers, handle).then(|| &*self.rids[handle.slot()])
    }

    /// A live request.
    #[inline]
    pub fn get(&self, handle: JournalRequest) -> Option<&T> {
        if is_live(&self.numbers, handle) { self.requests[handle.slot()].as_ref() } else { None }
    }

    /// A live request.
    #[inline]
    pub fn get_mut(&mut self, handle: JournalRequest) -> Option<&mut T> {
        if is_live(&self.numbers, handle) { self.requests[handle.slot()].as_mut() } else { None }
    }

    /// All live requests, in order of number.
    pub fn iter(&self) -> impl Iterator<Item = (JournalRequest, &str, &T)> {
        self.in_order.iter().filter_map(|handle| Some((*handle, self.rid(*handle)?, self.get(*handle)?)))
    }
}

#[inline]
fn is_live(numbers: &[u64], request: JournalRequest) -> bool {
    numbers.get(request.slot()) == Some(&request.number().0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table of requests "req-0" to "req-99", numbered from 1, which had a row each in this order.
    fn hundred() -> Requests<u64> {
        let mut requests = Requests::new();
        requests.begin_batch();
        for at in 0..100 {
            begin(&mut requests, handle(at + 1, at as u32), &format!("req-{at:02}"), at);
        }
        requests
    }

    /// Adds a request with the batch's next row.
    fn begin(requests: &mut Requests<u64>, handle: JournalRequest, rid: &str, of: u64) {
        requests.insert(handle, rid, of);
        requests.begin_row(handle);
    }

    fn handle(number: u64, slot: u32) -> JournalRequest {
        JournalRequest::new(RequestNo(number), slot)
    }

    /// Matches a batch with these rids, as rows that stand side by side, and returns the request of each row; `None`: unknown.
    fn batch(requests: &mut Requests<u64>, rids: &[String]) -> Vec<Option<u64>> {
        let (cells, width) = (rids.concat(), rids[0].len());
        let cells = RidCells { cells: cells.as_bytes(), width };
        requests.begin_batch();
        let mut found = Vec::new();
        while found.len() < rids.len() {
            let same = requests.find_same(cells);
            let of = |handle: &JournalRequest| requests.get(*handle).copied();
            found.extend(requests.rows()[found.len()..][..same].iter().map(of));
            if let Some(rid) = rids.get(found.len()) {
                let next = requests.find_next(rid.as_bytes());
                found.push(next.and_then(|handle| requests.get(handle).copied()));
            }
        }
        requests.end_batch(Some(cells));
        found
    }

    fn rids(of: impl Iterator<Item = u64>) -> Vec<String> {
        of.map(|at| format!("req-{at:02}")).collect()
    }

    #[test]
    fn a_row_finds_its_request_whatever_the_order_of_the_batch() {
        let mut requests = hundred();
        for stride in [1, 1, 3, 7, 99, 99, 1] {
            let order: Vec<u64> = (0..100).map(|step| step * stride % 100).collect();
            let expected: Vec<_> = order.iter().copied().map(Some).collect();
            assert_eq!(batch(&mut requests, &rids(order.iter().copied())), expected);
        }
        for left in [0..100, 3..100, 3..60, 0..100, 50..51] {
            let expected: Vec<_> = left.clone().map(Some).collect();
            assert_eq!(batch(&mut requests, &rids(left)), expected);
        }
    }

    #[test]
    fn the_row_behind_a_request_is_expected_to_be_of_the_one_that_was_behind_it_in_the_last_batch() {
        let mut requests = hundred();
        // The rows of 0 and 40 are gone, and that of 60 stands before that of 50.
        let order = (1..40).chain(41..50).chain([60]).chain(50..60).chain(61..100);
        requests.begin_batch();
        for at in order {
            assert_eq!(requests.find_next(format!("req-{at:02}").as_bytes()), requests.numbered(at + 1));
            if !(39..61).contains(&at) && at < 99 {
                assert_eq!(requests.roster.expected(), requests.numbered(at + 2), "behind {at}");
            }
        }
        requests.end_batch(None);
        // The row in the last batch counts, and not an earlier one.
        requests.begin_batch();
        assert_eq!(requests.find_next(b"req-30"), Some(handle(31, 30)));
        let [expected, behind] = [requests.roster.expected(), requests.roster.behind_expected()];
        assert_eq!([expected, behind], [Some(handle(32, 31)), Some(handle(33, 32))]);
    }

    #[test]
    fn a_rid_of_an_ended_request_is_unknown_although_the_bytes_of_the_column_are_the_same() {
        let mut requests = hundred();
        let all = rids(0..100);
        assert_eq!(batch(&mut requests, &all).len(), 100);
        assert!(requests.remove(handle(41, 40)).is_some());
        requests.begin_batch();
        let cells = all.concat();
        let cells = RidCells { cells: cells.as_bytes(), width: 6 };
        assert_eq!(requests.find_same(cells), 40);
        assert_eq!(requests.find_next(b"req-40"), None);
        // Another request has its rid and its slot.
        begin(&mut requests, handle(101, 40), "req-40", 400);
        assert_eq!(requests.find_next(b"req-41"), Some(handle(42, 41)));
        assert_eq!(requests.find_same(cells), 58);
        requests.end_batch(Some(cells));
        assert_eq!((requests.rows().len(), requests.rows()[40]), (100, handle(101, 40)));
        assert_eq!(requests.get(handle(41, 40)), None, "a handle of the ended request finds no other");
    }

    #[test]
    fn rids_are_not_compared_with_those_of_a_batch_that_did_not_end() {
        let mut requests = hundred();
        batch(&mut requests, &rids(0..2));
        requests.begin_batch();
        assert!(requests.find_next(b"req-08").is_some() && requests.find_next(b"req-09").is_some());
        requests.begin_batch();
        assert_eq!(requests.find_same(RidCells { cells: b"req-00req-01", width: 6 }), 0);
    }

    #[test]
    fn a_removed_request_is_not_found_by_rid_or_number_and_its_slot_is_used_again() {
        let mut requests = hundred();
        assert_eq!(requests.remove(handle(1, 0)), Some(("req-00".into(), 0)));
        assert_eq!((requests.find(b"req-00"), requests.numbered(1)), (None, None));
        assert_eq!(requests.numbered(2), Some(handle(2, 1)));
        requests.insert(handle(300, 0), "again", 7);
        assert_eq!(
            (requests.find(b"again"), requests.numbered(300)),
            (Some(handle(300, 0)), Some(handle(300, 0)))
        );
        assert_eq!((requests.len(), requests.rid(handle(300, 0))), (100, Some("again")));
    }

    #[test]
    fn ended_requests_are_forgotten_although_one_lives_on() {
        let mut requests = Requests::new();
        requests.insert(handle(1, 0), "long", 0);
        for number in 2..10_000 {
            requests.insert(handle(number, 1), "short", 0);
            requests.remove(handle(number, 1));
        }
        assert!(requests.in_order.len() <= 2 + ENDED_KEPT + 1);
        assert_eq!(requests.numbered(1), Some(handle(1, 0)));
        assert_eq!(requests.iter().count(), 1);
    }
}
