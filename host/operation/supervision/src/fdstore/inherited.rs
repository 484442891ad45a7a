//! Descriptors that an earlier process left.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;

use crate::fdstore::environment;
use crate::fdstore::name::{FdName, MEMBERS_MAX};
use crate::fdstore::store::FdStore;

/// Descriptors that an earlier process left, by name.
///
/// At the drop, each name that nobody keeps in the store again is removed from the supervisor's store, whether it was taken
/// or not: otherwise the supervisor would hold a connection open that nobody reads. So a value must live until its
/// taken descriptors are kept. Names that nobody took are reported ([`crate::fdstore::Notice::LeftOver`]).
#[derive(Debug, Default)]
pub struct Inherited {
    entries: BTreeMap<FdName, Vec<OwnedFd>>,
    /// All names, also those that were taken.
    names: BTreeSet<FdName>,
    store: Option<FdStore>,
}

impl Inherited {
    /// Takes the descriptors that the supervisor passes in the environment. Call it once, before the first thread. An entry
    /// of which a descriptor is missing is left over.
    ///
    /// # Errors
    ///
    /// The environment contradicts itself or names a number that is no open descriptor. Nothing is inherited then.
    pub fn from_env(store: &FdStore) -> io::Result<Inherited> {
        Ok(Inherited::from_passed(store, environment::take()?))
    }

    /// The entries that a supervisor or the process before has passed, one descriptor under each numbered name.
    pub fn from_passed(store: &FdStore, passed: Vec<(String, OwnedFd)>) -> Inherited {
        let mut found: BTreeMap<(FdName, usize), Vec<Option<OwnedFd>>> = BTreeMap::new();
        let mut foreign = Vec::new();
        for (text, fd) in passed {
            let Some((name, index, count)) = FdName::from_numbered(&text) else {
                foreign.push(text);
                continue;
            };
            let places = found.entry((name, count)).or_default();
            places.resize_with(count.min(MEMBERS_MAX), || None);
            if let Some(place) = places.get_mut(index) {
                *place = Some(fd);
            }
        }
        let mut entries = Vec::new();
        for ((name, count), places) in found {
            let fds: Vec<OwnedFd> = places.into_iter().flatten().collect();
            if fds.len() == count && entries.last().is_none_or(|(last, _)| *last != name) {
                entries.push((name, fds));
            } else {
                store.remove_incomplete(&name, count);
            }
        }
        store.remove_foreign(&foreign);
        Inherited::from_entries(store, entries)
    }

    /// The entries of a hand-over ([`FdStore::entries`]).
    pub fn from_entries(store: &FdStore, entries: Vec<(FdName, Vec<OwnedFd>)>) -> Inherited {
        let entries: BTreeMap<FdName, Vec<OwnedFd>> = entries.into_iter().collect();
        store.reserve(&entries);
        let names = entries.keys().cloned().collect();
        Inherited { entries, names, store: Some(store.clone()) }
    }

    /// Takes the descriptors of this name, in the order in which they were kept.
    pub fn take(&mut self, name: &FdName) -> Option<Vec<OwnedFd>> {
        self.entries.remove(name)
    }

    /// Takes all entries whose name begins with `prefix`, in the order of their names.
    pub fn take_with_prefix(&mut self, prefix: &str) -> Vec<(FdName, Vec<OwnedFd>)> {
        self.entries.extract_if(.., |name, _| name.as_str().starts_with(prefix)).collect()
    }

    /// Moves all entries whose name begins with `prefix` into an `Inherited` of their own.
    pub fn split(&mut self, prefix: &str) -> Inherited {
        Inherited {
            entries: self.entries.extract_if(.., |name, _| name.as_str().starts_with(prefix)).collect(),
            names: self.names.extract_if(.., |name| name.as_str().starts_with(prefix)).collect(),
            store: self.store.clone(),
        }
    }
}

impl Drop for Inherited {
    fn drop(&mut self) {
        let Some(store) = self.store.take() else { return };
        let entries = std::mem::take(&mut self.entries);
        for name in &self.names {
            store.unreserve(name, entries.contains_key(name));
        }
    }
}
