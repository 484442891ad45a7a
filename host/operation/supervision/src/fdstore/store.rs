//! The registry of kept descriptors, and its copy in the supervisor's store.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::fdstore::name::{FdName, MEMBERS_MAX};
use crate::fdstore::supervisor::{NAMES_BYTES_MAX, State as Word, Supervisor};

/// A change in the store that an operator should see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The supervisor's store has no room for these descriptors, or the message failed. The connection works, and a crash
    /// closes it. Reported once until descriptors fit again.
    NotKept {
        /// The first name that did not fit.
        name: FdName,
        /// The reason, as a sentence without its end.
        reason: String,
    },
    /// An earlier process left descriptors that nobody needs. They are closed.
    LeftOver {
        /// The name as the supervisor passed it.
        name: String,
        /// The reason, as a sentence without its end.
        why: &'static str,
    },
}

/// The descriptors that outlive this process, by name. Clones share the entries.
#[derive(Clone)]
pub struct FdStore(Arc<Shared>);

struct Shared {
    supervisor: Option<Supervisor>,
    notices: Box<dyn Fn(Notice) + Send + Sync>,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    kept: BTreeMap<FdName, Entry>,
    /// The names that an earlier process left and that may still be kept: they stay in the supervisor's store, kept or not.
    reserved: BTreeSet<FdName>,
    /// The supervisor's store, as far as this process knows.
    told: BTreeMap<FdName, Vec<Identity>>,
    /// Set while another process owns the supervisor's store.
    released: bool,
    /// Set after [`Notice::NotKept`], until descriptors fit again.
    refused: bool,
    next_id: u64,
}

struct Entry {
    /// Tells this entry from a later one of the same name.
    id: u64,
    fds: Vec<OwnedFd>,
    identities: Vec<Identity>,
}

/// Device and inode: the same for all duplicates of a descriptor.
type Identity = (u64, u64);

impl FdStore {
    /// A store that only this process knows.
    pub fn new() -> FdStore {
        FdStore::build(None, |_| {})
    }

    /// A store whose entries the supervisor keeps too, up to [`Supervisor::descriptors_max`]. `notices` gets every
    /// [`Notice`]; it must not call the store.
    pub fn with_supervisor(
        supervisor: Supervisor,
        notices: impl Fn(Notice) + Send + Sync + 'static,
    ) -> FdStore {
        FdStore::build(Some(supervisor), notices)
    }

    fn build(supervisor: Option<Supervisor>, notices: impl Fn(Notice) + Send + Sync + 'static) -> FdStore {
        FdStore(Arc::new(Shared { supervisor, notices: Box::new(notices), entries: Mutex::default() }))
    }

    /// Keeps duplicates of 1 to 8 descriptors under one name, in this order, until the drop of the returned [`Kept`]. An
    /// earlier entry of the same name is replaced.
    ///
    /// A failure is a [`Notice`]: the connection then works, but it does not outlive a crash.
    pub fn keep(&self, name: FdName, fds: &[BorrowedFd<'_>]) -> Kept {
        let mut entries = self.lock();
        let id = entries.next_id;
        entries.next_id += 1;
        match Entry::new(id, fds) {
            Ok(entry) => {
                entries.kept.insert(name.clone(), entry);
            }
            Err(error) => {
                entries.kept.remove(&name);
                self.refuse(&mut entries, &name, format!("its descriptors cannot be duplicated: {error}"));
            }
        }
        self.settle(&mut entries, &name);
        drop(entries);
        Kept { store: self.clone(), name, id }
    }

    /// Duplicates of all entries, for a hand-over.
    ///
    /// # Errors
    ///
    /// A descriptor cannot be duplicated, for instance because the process has too many.
    pub fn entries(&self) -> io::Result<Vec<(FdName, Vec<OwnedFd>)>> {
        let entries = self.lock();
        let copy = |fds: &[OwnedFd]| fds.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>();
        entries.kept.iter().map(|(name, entry)| Ok((name.clone(), copy(&entry.fds)?))).collect()
    }

    /// From now on the supervisor is told nothing: the successor owns its store. Call it before a hand-over in both
    /// processes.
    pub fn release(&self) {
        self.lock().released = true;
    }

    /// Ends [`FdStore::release`]: this process owns the supervisor's store, and the supervisor is told all changes since.
    /// Call it in the old process if the hand-over failed, in the new one if it succeeded.
    pub fn reclaim(&self) {
        let mut entries = self.lock();
        entries.released = false;
        let names: BTreeSet<FdName> = entries.kept.keys().chain(entries.told.keys()).cloned().collect();
        for name in &names {
            self.settle(&mut entries, name);
        }
    }

    /// The supervisor, if there is one.
    pub fn supervisor(&self) -> Option<&Supervisor> {
        self.0.supervisor.as_ref()
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the supervisor has these entries, and leaves them there until [`FdStore::unreserve`].
    pub(crate) fn reserve(&self, inherited: &BTreeMap<FdName, Vec<OwnedFd>>) {
        let mut entries = self.lock();
        for (name, fds) in inherited {
            entries.reserved.insert(name.clone());
            // An entry without an identity is stored anew, which changes nothing if the supervisor has it.
            entries.told.insert(name.clone(), identities(fds).unwrap_or_default());
        }
    }

    /// Ends [`FdStore::reserve`]. An entry that nobody kept is removed from the supervisor's store.
    pub(crate) fn unreserve(&self, name: &FdName, left_over: bool) {
        let mut entries = self.lock();
        entries.reserved.remove(name);
        self.settle(&mut entries, name);
        if left_over && !entries.kept.contains_key(name) {
            let why = "no stream or sink of the configuration has this name";
            (self.0.notices)(Notice::LeftOver { name: name.to_string(), why });
        }
    }

    /// Removes an entry of which the supervisor passed only a part.
    pub(crate) fn remove_incomplete(&self, name: &FdName, count: usize) {
        self.remove(name, count.min(MEMBERS_MAX));
        let why = "the process ended while it stored them, and a part is missing";
        (self.0.notices)(Notice::LeftOver { name: name.to_string(), why });
    }

    /// Removes descriptors that are not from an [`FdStore`].
    pub(crate) fn remove_foreign(&self, names: &[String]) {
        for name in names {
            self.remove_one(name);
            let why = "another program stored them";
            (self.0.notices)(Notice::LeftOver { name: name.clone(), why });
        }
    }

    /// Makes the supervisor's store what it should be for this name.
    fn settle(&self, entries: &mut Entries, name: &FdName) {
        let Some(supervisor) = &self.0.supervisor else { return };
        if entries.released {
            return;
        }
        let kept = entries.kept.get(name);
        match (entries.told.get(name), kept) {
            (Some(told), Some(kept)) if *told == kept.identities => return,
            (Some(_), None) if entries.reserved.contains(name) => return,
            (Some(told), _) => {
                self.remove(name, told.len());
                entries.told.remove(name);
            }
            (None, _) => {}
        }
        let Some(kept) = entries.kept.get(name) else { return };
        let result = entries.has_room(supervisor, name, kept).and_then(|()| {
            store(supervisor, name, &kept.fds)
                .map_err(|error| format!("the message to the supervisor failed: {error}"))
        });
        match result {
            Ok(()) => {
                entries.told.insert(name.clone(), kept.identities.clone());
                entries.refused = false;
            }
            Err(reason) => {
                let count = kept.fds.len();
                self.remove(name, count);
                self.refuse(entries, name, reason);
            }
        }
    }

    fn refuse(&self, entries: &mut Entries, name: &FdName, reason: String) {
        if !std::mem::replace(&mut entries.refused, true) {
            (self.0.notices)(Notice::NotKept { name: name.clone(), reason });
        }
    }

    fn remove(&self, name: &FdName, count: usize) {
        for index in 0..count {
            self.remove_one(&name.numbered(index, count));
        }
    }

    /// Removes one descriptor. A failure costs a place in the supervisor's store until this process ends.
    fn remove_one(&self, numbered: &str) {
        if let Some(supervisor) = &self.0.supervisor {
            let _ = supervisor.send(&[Word::Custom(&format!("FDSTOREREMOVE=1\nFDNAME={numbered}"))]);
        }
    }
}

/// Sends each descriptor with a name of its own. `FDPOLL=0`: the supervisor would drop a connection that its peer closed,
/// with the bytes that are still to be read.
fn store(supervisor: &Supervisor, name: &FdName, fds: &[OwnedFd]) -> io::Result<()> {
    for (index, fd) in fds.iter().enumerate() {
        let words = format!("{}\nFDPOLL=0", name.stored(index, fds.len()));
        supervisor.send_with(&[Word::Custom(&words)], Some(fd.as_fd()))?;
    }
    Ok(())
}

impl Entries {
    /// The reason why the supervisor's store has no room for this entry.
    fn has_room(&self, supervisor: &Supervisor, name: &FdName, entry: &Entry) -> Result<(), String> {
        let max = supervisor.descriptors_max();
        let told: usize = self.told.values().map(Vec::len).sum();
        if told + entry.fds.len() > max {
            return Err(match max {
                0 => "the supervisor keeps no descriptors (FileDescriptorStoreMax=)".to_owned(),
                _ => format!("the supervisor keeps {told} descriptors and allows {max}"),
            });
        }
        let bytes = |name: &FdName, count: usize| count * (name.numbered(count, count).len() + 1);
        let told: usize = self.told.iter().map(|(name, fds)| bytes(name, fds.len())).sum();
        match told + bytes(name, entry.fds.len()) > NAMES_BYTES_MAX {
            true => Err(format!("the names of all kept descriptors have {told} bytes of {NAMES_BYTES_MAX}")),
            false => Ok(()),
        }
    }
}

impl Entry {
    fn new(id: u64, fds: &[BorrowedFd<'_>]) -> io::Result<Entry> {
        if !(1..=MEMBERS_MAX).contains(&fds.len()) {
            let reason = format!("{} descriptors under one name, must be 1 to {MEMBERS_MAX}", fds.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let fds: Vec<OwnedFd> = fds.iter().map(BorrowedFd::try_clone_to_owned).collect::<io::Result<_>>()?;
        let identities = identities(&fds)?;
        Ok(Entry { id, fds, identities })
    }
}

fn identities(fds: &[OwnedFd]) -> io::Result<Vec<Identity>> {
    fds.iter()
        .map(|fd| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino)).map_err(Into::into))
        .collect()
}

impl Default for FdStore {
    fn default() -> FdStore {
        FdStore::new()
    }
}

impl std::fmt::Debug for FdStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FdStore").field("supervisor", &self.0.supervisor).finish_non_exhaustive()
    }
}

/// Descriptors stay in the store as long as this guard lives. At the drop they are out of the store and, unless the store
/// is released, out of the supervisor's store.
#[derive(Debug)]
#[must_use = "the drop forgets the descriptors"]
pub struct Kept {
    store: FdStore,
    name: FdName,
    id: u64,
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut entries = self.store.lock();
        if entries.kept.get(&self.name).is_some_and(|entry| entry.id == self.id) {
            entries.kept.remove(&self.name);
            self.store.settle(&mut entries, &self.name);
        }
    }
}

#[cfg(test)]
mod tests;
