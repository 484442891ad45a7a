//! The store against the supervisor's side of the protocol.

use super::*;
use crate::fdstore::receive::{NotifySocket, StoredFds};
use crate::fdstore::{Inherited, Supervisor};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::{SocketAddr, UnixStream};

/// A supervisor with its store.
struct Double {
    socket: NotifySocket,
    stored: StoredFds,
    notices: Arc<Mutex<Vec<Notice>>>,
    _directory: tempfile::TempDir,
}

impl Double {
    fn new(max: usize) -> (Double, FdStore) {
        let directory = tempfile::tempdir().unwrap();
        let socket = NotifySocket::bind(directory.path().join("notify")).unwrap();
        let double =
            Double { socket, stored: StoredFds::new(max), notices: Arc::default(), _directory: directory };
        let store = double.process(max);
        (double, store)
    }

    /// The store of a process that the supervisor starts.
    fn process(&self, max: usize) -> FdStore {
        let notices = self.notices.clone();
        let supervisor = Supervisor::new(SocketAddr::from_pathname(self.socket.path()).unwrap(), max, None);
        FdStore::with_supervisor(supervisor, move |notice| notices.lock().unwrap().push(notice))
    }

    fn names(&mut self) -> Vec<String> {
        while let Some(mut message) = self.socket.receive().unwrap() {
            self.stored.apply(&mut message);
        }
        let (_, names) = self.stored.to_pass().unwrap();
        names.split(':').filter(|name| !name.is_empty()).map(str::to_owned).collect()
    }

    /// Passes the stored descriptors to the next process, in the opposite order: systemd keeps none.
    fn inherit(&mut self, store: &FdStore) -> Inherited {
        let names = self.names();
        let (fds, _) = self.stored.to_pass().unwrap();
        Inherited::from_passed(store, names.into_iter().zip(fds).rev().collect())
    }

    fn notices(&self) -> Vec<Notice> {
        std::mem::take(&mut *self.notices.lock().unwrap())
    }
}

/// Ends a process as a kill does: the supervisor is told nothing, and every descriptor is closed.
fn die<const N: usize>(store: FdStore, kept: [Kept; N]) {
    store.release();
    drop(kept);
}

fn name(text: &str) -> FdName {
    FdName::new(text).unwrap()
}

/// A socket and a file, as a connection and its memory.
fn pair() -> (UnixStream, UnixStream, File) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (ours, theirs, tempfile::tempfile().unwrap())
}

#[test]
fn a_kept_connection_outlives_its_process_and_keeps_the_order_of_its_descriptors() {
    let (mut double, store) = Double::new(16);
    let (ours, mut theirs, mut memory) = pair();
    memory.write_all(b"bytes").unwrap();
    let kept = store.keep(name("a"), &[ours.as_fd(), memory.as_fd()]);
    die(store, [kept]);
    drop((ours, memory));
    let next = double.process(16);
    let mut inherited = double.inherit(&next);
    let fds = inherited.take(&name("a")).unwrap();
    let [socket, memory] = <[OwnedFd; 2]>::try_from(fds).unwrap();
    theirs.write_all(b"x").unwrap();
    let mut byte = [0];
    UnixStream::from(socket.try_clone().unwrap()).read_exact(&mut byte).unwrap();
    assert_eq!(&byte, b"x");
    assert_eq!(File::from(memory.try_clone().unwrap()).metadata().unwrap().len(), 5);
    let kept = next.keep(name("a"), &[socket.as_fd(), memory.as_fd()]);
    drop(inherited);
    assert_eq!(double.names(), ["a.0-2", "a.1-2"]);
    assert_eq!(double.notices(), []);
    drop((kept, socket, memory));
    assert_eq!(double.names(), [""; 0]);
    assert_eq!(theirs.read(&mut byte).unwrap_or(0), 0, "nobody holds the connection open");
}

#[test]
fn an_inherited_connection_that_nobody_keeps_is_closed_and_only_an_untaken_one_is_reported() {
    let (mut double, store) = Double::new(16);
    let mut ends = Vec::new();
    let kept = ["s/taken", "s/left", "t/other"].map(|text| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ends.push(theirs);
        store.keep(name(text), &[ours.as_fd()])
    });
    die(store, kept);
    let next = double.process(16);
    let mut all = double.inherit(&next);
    let mut of_stream = all.split("s/");
    assert_eq!(of_stream.take_with_prefix("s/t").len(), 1);
    drop(of_stream);
    assert!(matches!(&double.notices()[..], [Notice::LeftOver { name, .. }] if name == "s/left"));
    assert_eq!(double.names(), ["t/other.0-1"]);
    for (mut end, is_open) in ends.iter().zip([false, false, true]) {
        end.set_nonblocking(true).unwrap();
        assert_eq!(end.read(&mut [0]).is_err(), is_open);
    }
    drop(all);
    assert_eq!(double.names(), [""; 0]);
}

#[test]
fn an_entry_of_which_a_part_is_missing_is_left_over() {
    let (mut double, store) = Double::new(16);
    let (ours, _theirs, memory) = pair();
    let kept = store.keep(name("a"), &[ours.as_fd(), memory.as_fd()]);
    die(store, [kept]);
    double.names();
    let (mut fds, _) = double.stored.to_pass().unwrap();
    let next = double.process(16);
    let passed = vec![("a.1-2".to_owned(), fds.remove(1)), ("foreign".to_owned(), fds.remove(0))];
    let mut inherited = Inherited::from_passed(&next, passed);
    assert!(inherited.take_with_prefix("").is_empty());
    assert_eq!(double.notices().len(), 2);
    assert_eq!(double.names(), [""; 0]);
}

#[test]
fn a_full_store_of_the_supervisor_is_reported_once_and_the_entry_stays_in_the_process() {
    let (mut double, store) = Double::new(2);
    let (ours, _theirs, memory) = pair();
    let first = store.keep(name("a"), &[ours.as_fd(), memory.as_fd()]);
    let (second, third) = (store.keep(name("b"), &[ours.as_fd()]), store.keep(name("c"), &[memory.as_fd()]));
    let reason = "the supervisor keeps 2 descriptors and allows 2".to_owned();
    assert_eq!(double.notices(), [Notice::NotKept { name: name("b"), reason }]);
    assert_eq!(store.entries().unwrap().len(), 3);
    assert_eq!(double.names(), ["a.0-2", "a.1-2"]);
    drop((first, second, third));
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let _kept = store.keep(FdName::listener("s"), &[ours.as_fd()]);
    assert_eq!(double.names(), ["stream/s/listener.0-1"]);
    assert_eq!(double.notices(), []);
}

#[test]
fn a_supervisor_without_a_store_or_without_a_reader_is_a_notice() {
    let (double, store) = Double::new(0);
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let _kept = store.keep(name("a"), &[ours.as_fd()]);
    assert!(
        matches!(&double.notices()[..], [Notice::NotKept { reason, .. }] if reason.contains("FileDescriptorStoreMax="))
    );
    let store = double.process(16);
    let notices = double.notices.clone();
    drop(double);
    let _kept = store.keep(name("a"), &[ours.as_fd()]);
    assert!(
        matches!(&notices.lock().unwrap()[..], [Notice::NotKept { reason, .. }] if reason.contains("message"))
    );
    assert_eq!(store.entries().unwrap().len(), 1);
}

#[test]
fn a_supervisor_that_does_not_read_delays_a_message_by_a_bound() {
    let (mut double, store) = Double::new(DESCRIPTORS);
    let (ours, _theirs) = UnixStream::pair().unwrap();
    // The kernel's queue of the socket has room for 10 messages, unless the machine is configured for more.
    let kept: Vec<Kept> = (0..DESCRIPTORS)
        .map(|id| FdName::sender("s", id as u64))
        .take_while(|_| double.notices.lock().unwrap().is_empty())
        .map(|name| store.keep(name, &[ours.as_fd()]))
        .collect();
    assert!(matches!(&double.notices()[..], [Notice::NotKept { .. }]), "{}", kept.len());
    double.names();
}

/// More than any queue of a socket holds.
const DESCRIPTORS: usize = 2000;

#[test]
fn an_entry_of_the_same_name_replaces_the_earlier_one_whose_guard_then_forgets_nothing() {
    let (mut double, store) = Double::new(16);
    let (first, mut first_end) = UnixStream::pair().unwrap();
    let (second, second_end) = UnixStream::pair().unwrap();
    let earlier = store.keep(name("a"), &[first.as_fd()]);
    let later = store.keep(name("a"), &[second.as_fd()]);
    drop((earlier, first, second));
    assert_eq!(double.names(), ["a.0-1"]);
    assert_eq!(first_end.read(&mut [0]).unwrap(), 0);
    second_end.set_nonblocking(true).unwrap();
    assert!((&second_end).read(&mut [0]).is_err());
    drop(later);
    assert_eq!(double.names(), [""; 0]);
    assert_eq!((&second_end).read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_successor_owns_the_supervisors_store_until_the_hand_over_fails() {
    let (mut double, store) = Double::new(16);
    let (ours, _theirs, memory) = pair();
    let (a, b) = (store.keep(name("a"), &[ours.as_fd()]), store.keep(name("b"), &[memory.as_fd()]));
    store.release();
    drop(a);
    assert_eq!(double.names(), ["a.0-1", "b.0-1"]);
    store.reclaim();
    assert_eq!(double.names(), ["b.0-1"]);
    drop(b);
    assert_eq!(double.names(), [""; 0]);
}

#[test]
fn a_successor_tells_the_supervisor_at_its_reclaim_what_it_did_not_keep() {
    let (mut double, store) = Double::new(16);
    let (ours, _theirs, memory) = pair();
    let old = (store.keep(name("a"), &[ours.as_fd()]), store.keep(name("b"), &[memory.as_fd()]));
    store.release();
    let next = double.process(16);
    next.release();
    let mut inherited = Inherited::from_entries(&next, store.entries().unwrap());
    let fds = inherited.take(&name("a")).unwrap();
    let _kept = next.keep(name("a"), &[fds[0].as_fd()]);
    let (new, _new_end) = UnixStream::pair().unwrap();
    let _new = next.keep(name("c"), &[new.as_fd()]);
    drop((inherited, old));
    assert_eq!(double.names(), ["a.0-1", "b.0-1"]);
    next.reclaim();
    assert_eq!(double.names(), ["a.0-1", "c.0-1"]);
}
