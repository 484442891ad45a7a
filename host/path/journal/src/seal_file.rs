//! The file with the seal of a segment, beside the segment: what the segment held when an operator sealed it, signed, and the
//! salts of that, unsigned. An erasure removes salts and leaves the rest, so that the signature stays valid.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::error::{IoError, ReadError};
use crate::format::{ByteReader, decoded, encoded};
use crate::position::SegmentId;
use crate::storage::{Lock, LockError, Storage};
use crate::text_file;

/// Extension of the file, in place of the segment's.
pub(crate) const SEAL: &str = "seal";
const MAGIC: [u8; 8] = *b"ABSEALED";
const VERSION: u32 = 1;
/// Begins the bytes that are signed, so that the key's signature of them says nothing else.
const SIGNED: &[u8] = b"afterbay journal seal 1\n";
/// Bytes of the largest file: 2^18 parts with long rids, and a link for each MiB of the largest segment.
const BYTES_MAX: u64 = 1 << 28;

/// A SHA-256.
pub(crate) type Digest = [u8; 32];
/// Random bytes without which nobody can try contents against a digest.
pub(crate) type Salt = [u8; 16];

/// Content of a segment that has a digest and a salt of its own, because an erasure may remove it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) enum Part {
    /// The content of the request with this number: of its rows in received and sent frames, and what plugins said of it.
    Request(u64),
    /// The content of the rows with this stored rid of which the segment does not tell the request.
    Rid(String),
    /// A frame, by the offset of its record, in which an erasure of one row moves the bytes of others.
    Record(u64),
}

/// The two chains at the end of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Link {
    /// Offset of the record's end.
    pub end: u64,
    /// Chain of the records as they are. It has a salt.
    pub exact: Digest,
    /// Chain of the records as they are once everything is erased.
    pub rest: Digest,
}

/// The signed content of a seal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Statement {
    /// Identity of the journal's directory.
    pub instance: String,
    pub stream: String,
    pub segment: SegmentId,
    /// Head of the seal of the segment before. `None`: no segment was sealed before.
    pub previous: Option<Digest>,
    pub sealed_unix_ns: u64,
    /// The program that sealed. What of a frame is content is its decoders' answer.
    pub program: String,
    /// One link for each MiB of records, and one for the end of the last.
    pub links: Vec<Link>,
    /// In order.
    pub parts: Vec<(Part, Digest)>,
}

/// A seal. The salts are not signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SealFile {
    pub statement: Statement,
    pub signature: Vec<u8>,
    /// Salt of the exact chain. `None`: content of the segment was erased.
    pub exact_salt: Option<Salt>,
    /// Salt of each part. `None`: the part was erased.
    pub salts: Vec<Option<Salt>>,
}

/// The seal as it is stored.
#[derive(Serialize, Deserialize)]
struct Stored {
    statement: Vec<u8>,
    signature: Vec<u8>,
    exact_salt: Option<Salt>,
    salts: Vec<Option<Salt>>,
}

impl Statement {
    /// The bytes that are signed.
    pub fn signed(&self) -> Vec<u8> {
        [SIGNED, &encoded(self)].concat()
    }

    /// The digest by which the seal of the next segment, and whoever keeps it elsewhere, names this seal and all before it.
    pub fn head(&self) -> Digest {
        Sha256::digest(self.signed()).into()
    }
}

impl SealFile {
    /// Reads the seal of a segment. `None`: there is none.
    pub fn read(
        storage: &dyn Storage,
        dir: &Path,
        segment: SegmentId,
    ) -> Result<Option<SealFile>, ReadError> {
        let path = path(dir, segment);
        let Some(bytes) = text_file::read_bytes(storage, &path, BYTES_MAX)? else { return Ok(None) };
        let damaged = || ReadError::Corrupt { path, offset: 0 };
        SealFile::decode(&bytes).map(Some).ok_or_else(damaged)
    }

    /// Writes or replaces the file durably.
    pub fn write(&self, storage: &dyn Storage, dir: &Path) -> Result<(), IoError> {
        let name = name(self.statement.segment);
        text_file::replace(storage, dir, &name, &self.encode())
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(encoded(&Stored {
            statement: encoded(&self.statement),
            signature: self.signature.clone(),
            exact_salt: self.exact_salt,
            salts: self.salts.clone(),
        }));
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<SealFile> {
        let (content, crc) = bytes.split_last_chunk()?;
        let mut at = ByteReader(content);
        if crc32fast::hash(content).to_le_bytes() != *crc || at.take(8)? != MAGIC || at.u32()? != VERSION {
            return None;
        }
        let Stored { statement, signature, exact_salt, salts } = decoded(at.0)?;
        let read: Statement = decoded(&statement)?;
        // Otherwise a reader might see something else than was signed.
        let is_whole = encoded(&read) == statement && read.parts.len() == salts.len();
        is_whole.then_some(SealFile { statement: read, signature, exact_salt, salts })
    }

    /// The parts, each with its salt if it was not erased.
    pub fn salted_parts(&self) -> impl Iterator<Item = (&Part, &Digest, Option<Salt>)> {
        let parts = self.statement.parts.iter().zip(&self.salts);
        parts.map(|((part, digest), salt)| (part, digest, *salt))
    }
}

/// The segments of a stream that have a seal, oldest first.
pub(crate) fn list(storage: &dyn Storage, dir: &Path) -> Result<Vec<SegmentId>, IoError> {
    let entries = storage.list(dir).map_err(|error| IoError::new("list", dir, error))?;
    let segment = |name: &str| SegmentId::parse(&format!("{}seg", name.strip_suffix(SEAL)?));
    let mut sealed: Vec<SegmentId> = entries.iter().filter_map(|entry| segment(&entry.name)).collect();
    sealed.sort_unstable();
    Ok(sealed)
}

fn name(segment: SegmentId) -> String {
    path(Path::new(""), segment).display().to_string()
}

/// The file with the seal of a segment.
pub(crate) fn path(dir: &Path, segment: SegmentId) -> PathBuf {
    dir.join(segment.to_string()).with_extension(SEAL)
}

/// Locks the seals of a stream. `None`: another process seals, or an erasure is under way.
pub(crate) fn lock(storage: &dyn Storage, dir: &Path) -> Result<Option<Box<dyn Lock>>, IoError> {
    match storage.lock(dir) {
        Ok(lock) => Ok(Some(lock)),
        Err(LockError::Held(_)) => Ok(None),
        Err(LockError::Io(error)) => Err(IoError::new("lock", dir, error)),
    }
}

/// Removes the salts of parts whose content is about to be erased, and that of the segment. The stream's seals are locked.
pub(crate) fn erase(
    storage: &dyn Storage,
    dir: &Path,
    segment: SegmentId,
    is_erased: impl Fn(&Part) -> bool,
) -> Result<(), ReadError> {
    let mut seal = match SealFile::read(storage, dir, segment) {
        Ok(Some(seal)) => seal,
        Ok(None) => return Ok(()),
        // It proves nothing, and its salts must go.
        Err(ReadError::Corrupt { .. }) => {
            return Ok(remove(storage, dir, segment).map_err(|error| IoError::new("remove", dir, error))?);
        }
        Err(error) => return Err(error),
    };
    let before = seal.clone();
    seal.exact_salt = None;
    for ((part, _), salt) in seal.statement.parts.iter().zip(&mut seal.salts) {
        *salt = salt.filter(|_| !is_erased(part));
    }
    match seal == before {
        true => Ok(()),
        false => Ok(seal.write(storage, dir)?),
    }
}

/// Removes the seal of a segment that was removed.
pub(crate) fn remove(storage: &dyn Storage, dir: &Path, segment: SegmentId) -> io::Result<()> {
    match storage.remove(&path(dir, segment)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
