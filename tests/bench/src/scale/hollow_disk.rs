//! A disk on which large parts of zeros take no room: a journal of 100 GB whose frames are zeros fits into 2 GB.

use afterbay_journal::storage::{Disk, File, Storage};
use afterbay_sim_disk::AlmostDisk;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

/// Parts of zeros from this size on are left out.
const HOLE_BYTES: usize = 64 << 10;

struct HollowFile(Arc<dyn File>);

/// [`Disk`] with holes.
pub(super) fn hollow_disk() -> Arc<dyn Storage> {
    let create = |path: &Path| Ok(Arc::new(HollowFile(Disk.create(path)?)) as Arc<dyn File>);
    Arc::new(AlmostDisk { create, has_boot_clock: true })
}

impl File for HollowFile {
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let mut written = 0;
        for part in parts {
            if part.len() >= HOLE_BYTES && is_zero(part) {
                written += part.len();
                continue;
            }
            let bytes = self.0.write_at(&[IoSlice::new(part)], offset + written as u64)?;
            written += bytes;
            if bytes < part.len() {
                break;
            }
        }
        Ok(written)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }

    /// Reserved space would be no hole.
    fn reserve(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.0.truncate(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn bytes(&self) -> io::Result<u64> {
        self.0.bytes()
    }

    fn set_modified(&self, unix_ns: u64) -> io::Result<()> {
        self.0.set_modified(unix_ns)
    }

    fn is_at(&self, path: &Path) -> bool {
        self.0.is_at(path)
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    bytes.chunks(ZEROS.len()).all(|chunk| *chunk == ZEROS[..chunk.len()])
}
