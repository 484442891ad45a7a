//! A disk in memory that a test owns: its faults, its clock, and what a power cut leaves.
//!
//! The disk is strict. A write may be short, or fail after a part of it. A failed sync leaves pages that
//! count as clean, never reach the disk and may show their old bytes. A name is safe only after its directory
//! was synced. After a power cut each unsynced sector is old or new, and names end at some point of their
//! history.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use afterbay_journal::storage::{BootClock, DirEntry, File, Lock, LockError, Storage};

use crate::Random;
use crate::errors::{eio, enospc};

const SECTOR: usize = 512;

/// For each fault, one in how many times it happens; 0 for never.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// A write is short or fails.
    pub write: u64,
    /// Cutting a file fails.
    pub truncate: u64,
    /// Creating a file fails.
    pub create: u64,
    /// A sync fails.
    pub sync: u64,
    /// Removing a file fails.
    pub remove: u64,
    /// Renaming a file fails.
    pub rename: u64,
}

/// A call of a process to the disk, for a [`DiskHook`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskCall {
    /// Before a call of this kind.
    Before(&'static str),
    /// Before a write of this many bytes.
    Write(usize),
    /// After a write of which the disk took this many bytes.
    HasWritten(usize),
}

/// Gets each call of a process. Returns the most bytes that a write may take; ignored for other calls. May unwind, which stands
/// for the death of the process at this call.
pub type DiskHook = Box<dyn FnMut(DiskCall) -> usize + Send>;

/// The test's own handle, or a process's.
#[derive(Clone)]
pub struct SimDisk {
    world: Arc<Mutex<World>>,
    hook: Arc<Mutex<Option<DiskHook>>>,
    /// Process of this handle. A dead process can do nothing any more.
    life: Option<u64>,
}

struct World {
    random: Random,
    faults: Faults,
    /// Bytes that fit.
    capacity: usize,
    /// Whether space can be reserved for a file, as on ext4, xfs, btrfs and tmpfs.
    reserves: bool,
    /// Whether there is no room for another directory or file.
    full_of_names: bool,
    now_unix_ns: u64,
    /// Sum by which the wall clock was set.
    clock_set_by_ns: u64,
    boot: u64,
    files: Vec<Inode>,
    names: BTreeMap<PathBuf, usize>,
    dirs: BTreeSet<PathBuf>,
    /// States of the names since the last safe state, which comes first.
    history: Vec<(BTreeMap<PathBuf, usize>, BTreeSet<PathBuf>)>,
    locked: BTreeSet<usize>,
    /// Grows with each death of a process, whose open files then fail.
    life: u64,
    counts: Counts,
}

/// Counts of events, so that a test can see that it tested something.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Writes.
    pub writes: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Writes that were short or failed by a fault.
    pub failed_writes: u64,
    /// Syncs that failed by a fault.
    pub failed_syncs: u64,
    /// Writes and reservations that found no room.
    pub full: u64,
}

#[derive(Clone, Default)]
struct Inode {
    data: Vec<u8>,
    safe: Vec<u8>,
    dirty: BTreeSet<usize>,
    /// Bytes that the file takes up at least.
    reserved: usize,
    modified_unix_ns: u64,
}

impl SimDisk {
    /// An empty disk.
    pub fn new(seed: u64) -> SimDisk {
        let (names, mut dirs) = (BTreeMap::new(), BTreeSet::new());
        dirs.insert(PathBuf::from("/"));
        let world = Arc::new(Mutex::new(World {
            random: Random(seed),
            faults: Faults::default(),
            capacity: usize::MAX,
            reserves: false,
            full_of_names: false,
            now_unix_ns: 1,
            clock_set_by_ns: 0,
            boot: 1,
            history: vec![(names.clone(), dirs.clone())],
            files: Vec::new(),
            names,
            dirs,
            locked: BTreeSet::new(),
            life: 0,
            counts: Counts::default(),
        }));
        SimDisk { world, hook: Arc::default(), life: None }
    }

    /// Handle of a process that starts now.
    pub fn process(&self) -> Arc<SimDisk> {
        let life = self.world().life;
        Arc::new(SimDisk { world: self.world.clone(), hook: self.hook.clone(), life: Some(life) })
    }

    /// Sets the hook of all processes, or removes it.
    pub fn set_hook(&self, hook: Option<DiskHook>) {
        *self.hook.lock().unwrap_or_else(PoisonError::into_inner) = hook;
    }

    /// The most bytes that the call may transfer.
    fn at(&self, call: DiskCall) -> usize {
        if self.life.is_none_or(|life| life != self.world().life) {
            return usize::MAX;
        }
        // The hook may unwind.
        let mut hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner);
        hook.as_mut().map_or(usize::MAX, |hook| hook(call))
    }

    fn called(&self, call: &'static str) -> io::Result<MutexGuard<'_, World>> {
        self.at(DiskCall::Before(call));
        self.alive()
    }

    fn alive(&self) -> io::Result<MutexGuard<'_, World>> {
        let world = self.world();
        if self.life.is_none_or(|life| life == world.life) { Ok(world) } else { Err(eio()) }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    /// Sets the faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.world().faults = faults;
    }

    /// Whether the disk has faults or a bound.
    pub fn has_faults(&self) -> bool {
        let world = self.world();
        let Faults { write, truncate, create, sync, remove, rename } = world.faults;
        write + truncate + create + sync + remove + rename > 0 || world.capacity < usize::MAX
    }

    /// Sets the bytes that fit.
    pub fn set_capacity(&self, capacity: usize) {
        self.world().capacity = capacity;
    }

    /// Sets whether space can be reserved for a file.
    pub fn set_reserves(&self, reserves: bool) {
        self.world().reserves = reserves;
    }

    /// Sets whether there is no room for another directory or file.
    pub fn set_full_of_names(&self, full: bool) {
        self.world().full_of_names = full;
    }

    /// Sets the wall clock forward.
    pub fn set_clock_forward(&self, ns: u64) {
        self.world().clock_set_by_ns += ns;
    }

    /// Removes a file behind the process's back.
    pub fn remove_file(&self, path: &Path) {
        self.world().names.remove(path).unwrap();
    }

    /// Lets time pass. Returns the time now.
    pub fn pass_time(&self, ns: u64) -> u64 {
        let mut world = self.world();
        world.now_unix_ns += ns;
        world.now_unix_ns
    }

    /// The counts of events so far.
    pub fn counts(&self) -> Counts {
        self.world().counts
    }

    /// The bytes in use.
    pub fn used(&self) -> usize {
        self.world().used()
    }

    /// Kills the process: its writes stay, its locks are released.
    pub fn kill(&self) {
        let mut world = self.world();
        world.locked.clear();
        world.life += 1;
    }

    /// Cuts the machine's power.
    pub fn cut_power(&self) {
        self.kill();
        let mut guard = self.world();
        let world = &mut *guard;
        let kept = world.random.below(world.history.len() as u64) as usize;
        (world.names, world.dirs) = world.history[kept].clone();
        world.history = vec![(world.names.clone(), world.dirs.clone())];
        for file in &mut world.files {
            let mut left = file.safe.clone();
            for &sector in &file.dirty {
                if world.random.once_in(2) {
                    continue;
                }
                let (start, end) = (sector * SECTOR, ((sector + 1) * SECTOR).min(file.data.len()));
                if start >= end {
                    continue;
                }
                left.resize(left.len().max(end), 0);
                left[start..end].copy_from_slice(&file.data[start..end]);
            }
            // A file that was cut may have its old length again.
            if file.data.len() < left.len() && world.random.once_in(2) {
                left.truncate(file.data.len());
            }
            *file = Inode { data: left.clone(), safe: left, dirty: BTreeSet::new(), ..file.clone() };
        }
        world.boot += 1;
    }

    /// Moves a directory with its contents away, as a rename does.
    pub fn take_away(&self, dir: &Path) -> Vec<(PathBuf, usize)> {
        let mut world = self.world();
        let (gone, names): (Vec<_>, Vec<_>) =
            std::mem::take(&mut world.names).into_iter().partition(|(path, _)| path.starts_with(dir));
        world.names = names.into_iter().collect();
        world.dirs.retain(|known| !known.starts_with(dir));
        gone
    }

    /// Brings a directory back.
    pub fn bring_back(&self, dirs: &[&Path], names: Vec<(PathBuf, usize)>) {
        let mut world = self.world();
        world.dirs.extend(dirs.iter().map(PathBuf::from));
        world.names.extend(names);
    }

    /// Edits the bytes of a file.
    pub fn edit(&self, path: &Path, edit: impl FnOnce(&mut Vec<u8>)) {
        let mut world = self.world();
        let inode = world.names[path];
        edit(&mut world.files[inode].data);
    }

    /// The paths of all files.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.world().names.keys().cloned().collect()
    }

    /// Segments in order.
    pub fn segments(&self) -> Vec<PathBuf> {
        self.paths().into_iter().filter(|path| path.extension().is_some_and(|is| is == "seg")).collect()
    }
}

impl Inode {
    fn room(&self) -> usize {
        self.data.len().max(self.reserved)
    }
}

impl World {
    /// The wall clock.
    fn wall_ns(&self) -> u64 {
        self.now_unix_ns + self.clock_set_by_ns
    }

    fn fails(&mut self, times: u64) -> bool {
        times > 0 && self.random.once_in(times)
    }

    fn used(&self) -> usize {
        self.names.values().map(|&inode| self.files[inode].room()).sum()
    }

    fn renamed(&mut self) {
        self.history.push((self.names.clone(), self.dirs.clone()));
    }

    fn parent_is_there(&self, path: &Path) -> io::Result<()> {
        match path.parent().is_some_and(|parent| self.dirs.contains(parent)) {
            true => Ok(()),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

impl Storage for SimDisk {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        let mut world = self.called("make_dir")?;
        world.parent_is_there(dir)?;
        if world.full_of_names && !world.dirs.contains(dir) {
            return Err(enospc());
        }
        if world.dirs.insert(dir.into()) {
            world.renamed();
        }
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let world = self.alive()?;
        if !world.dirs.contains(dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let files =
            world.names.iter().filter(|(path, _)| path.parent() == Some(dir)).map(|(path, &inode)| {
                let file = &world.files[inode];
                let (bytes, modified_unix_ns) = (file.data.len() as u64, file.modified_unix_ns);
                DirEntry { name: name(path), is_dir: false, bytes, modified_unix_ns }
            });
        let dirs = world.dirs.iter().filter(|path| path.parent() == Some(dir));
        let dirs =
            dirs.map(|path| DirEntry { name: name(path), is_dir: true, bytes: 0, modified_unix_ns: 0 });
        Ok(files.chain(dirs).collect())
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let mut world = self.called("create")?;
        world.parent_is_there(path)?;
        let times = world.faults.create;
        if world.fails(times) {
            return Err(eio());
        }
        let modified_unix_ns = world.wall_ns();
        world.files.push(Inode { modified_unix_ns, ..Inode::default() });
        let inode = world.files.len() - 1;
        world.names.insert(path.into(), inode);
        world.renamed();
        Ok(Arc::new(SimFile { disk: self.clone(), inode }))
    }

    fn open(&self, path: &Path, _write: bool) -> io::Result<Arc<dyn File>> {
        let world = self.alive()?;
        let inode = *world.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(SimFile { disk: self.clone(), inode }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut world = self.called("rename")?;
        let times = world.faults.rename;
        if world.fails(times) {
            return Err(eio());
        }
        let inode = world.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        world.names.insert(to.into(), inode);
        world.renamed();
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut world = self.called("remove")?;
        let times = world.faults.remove;
        if world.fails(times) {
            return Err(eio());
        }
        world.names.remove(path).ok_or(io::ErrorKind::NotFound)?;
        world.renamed();
        Ok(())
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        let mut world = self.called("sync_dir")?;
        let times = world.faults.sync;
        if world.fails(times) {
            return Err(eio());
        }
        world.history = vec![(world.names.clone(), world.dirs.clone())];
        Ok(())
    }

    fn lock(&self, dir: &Path) -> Result<Box<dyn Lock>, LockError> {
        let path = dir.join("LOCK");
        let mut world = self.alive().map_err(LockError::Io)?;
        let inode = match world.names.get(&path) {
            Some(&inode) => inode,
            None => {
                world.parent_is_there(&path).map_err(LockError::Io)?;
                world.files.push(Inode::default());
                let inode = world.files.len() - 1;
                world.names.insert(path.clone(), inode);
                world.renamed();
                inode
            }
        };
        if !world.locked.insert(inode) {
            return Err(LockError::Held("1".into()));
        }
        Ok(Box::new(SimLock { disk: self.clone(), inode, path }))
    }

    fn now_unix_ns(&self) -> u64 {
        self.world().wall_ns()
    }

    fn steady(&self) -> Option<BootClock> {
        let world = self.world();
        Some(BootClock { boot: world.boot, ns: world.now_unix_ns })
    }
}

struct SimFile {
    disk: SimDisk,
    inode: usize,
}

impl SimFile {
    fn write(&self, bytes: &[u8], most: usize, offset: u64) -> io::Result<usize> {
        let mut world = self.disk.alive()?;
        world.counts.writes += 1;
        let mut wanted = bytes.len().min(most);
        let offset = offset as usize;
        let grows = (offset + wanted).saturating_sub(world.files[self.inode].room());
        let free = world.capacity.saturating_sub(world.used());
        let full = grows > free;
        if full {
            world.counts.full += 1;
            wanted = wanted.saturating_sub(grows - free);
        }
        let times = world.faults.write;
        let fails = world.fails(times);
        if fails {
            world.counts.failed_writes += 1;
            wanted = world.random.below(wanted as u64 + 1) as usize;
        }
        let errs = fails && world.random.once_in(2);
        let now = world.wall_ns();
        let file = &mut world.files[self.inode];
        if wanted > 0 {
            file.data.resize(file.data.len().max(offset + wanted), 0);
            file.data[offset..offset + wanted].copy_from_slice(&bytes[..wanted]);
            file.dirty.extend(offset / SECTOR..=(offset + wanted - 1) / SECTOR);
            file.modified_unix_ns = now;
        }
        match wanted {
            _ if errs => Err(eio()),
            0 if full && !bytes.is_empty() => Err(enospc()),
            0 if fails => Err(eio()),
            wanted => Ok(wanted),
        }
    }
}

impl File for SimFile {
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let most = self.disk.at(DiskCall::Write(bytes.len()));
        let written = self.write(&bytes, most, offset);
        self.disk.at(DiskCall::HasWritten(*written.as_ref().unwrap_or(&0)));
        written
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut world = self.disk.alive()?;
        let rest = world.files[self.inode].data.get(offset as usize..).unwrap_or_default();
        let bytes = rest.len().min(buffer.len());
        buffer[..bytes].copy_from_slice(&rest[..bytes]);
        world.counts.read_bytes += bytes as u64;
        Ok(bytes)
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        let mut world = self.disk.alive()?;
        if !world.reserves {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let more = (bytes as usize).saturating_sub(world.files[self.inode].room());
        if more > world.capacity.saturating_sub(world.used()) {
            world.counts.full += 1;
            return Err(enospc());
        }
        world.files[self.inode].reserved = bytes as usize;
        Ok(())
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        let mut world = self.disk.called("truncate")?;
        let times = world.faults.truncate;
        if world.fails(times) {
            return Err(eio());
        }
        let file = &mut world.files[self.inode];
        let bytes = bytes as usize;
        if bytes < file.data.len() {
            file.dirty.insert(bytes / SECTOR);
        }
        file.data.resize(bytes, 0);
        file.reserved = 0;
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut guard = self.disk.called("sync")?;
        let world = &mut *guard;
        let times = world.faults.sync;
        let fails = world.fails(times);
        let file = &mut world.files[self.inode];
        let dirty = std::mem::take(&mut file.dirty);
        if fails {
            world.counts.failed_syncs += 1;
            // The pages count as clean: they may be dropped and read again from the disk.
            if world.random.once_in(2) {
                for sector in dirty {
                    for at in sector * SECTOR..((sector + 1) * SECTOR).min(file.data.len()) {
                        file.data[at] = file.safe.get(at).copied().unwrap_or(0);
                    }
                }
            }
            return Err(eio());
        }
        file.safe.resize(file.data.len(), 0);
        for sector in dirty {
            let (start, end) = (sector * SECTOR, ((sector + 1) * SECTOR).min(file.data.len()));
            if start < end {
                file.safe[start..end].copy_from_slice(&file.data[start..end]);
            }
        }
        Ok(())
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.disk.alive()?.files[self.inode].data.len() as u64)
    }

    fn set_modified(&self, unix_ns: u64) -> io::Result<()> {
        self.disk.called("set modified")?.files[self.inode].modified_unix_ns = unix_ns;
        Ok(())
    }

    fn is_at(&self, path: &Path) -> bool {
        self.disk.world().names.get(path) == Some(&self.inode)
    }
}

#[derive(Clone)]
struct SimLock {
    disk: SimDisk,
    inode: usize,
    path: PathBuf,
}

impl std::fmt::Debug for SimLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimLock({})", self.inode)
    }
}

impl Lock for SimLock {
    fn is_in_place(&self) -> bool {
        self.disk.world().names.get(&self.path) == Some(&self.inode)
    }
}

impl Drop for SimLock {
    fn drop(&mut self) {
        if let Ok(mut world) = self.disk.alive() {
            world.locked.remove(&self.inode);
        }
    }
}
