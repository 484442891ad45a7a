//! The file of a packed request: a tar archive, compressed with zstd.
//!
//! ```text
//! manifest.json          what the pack has, and what was left out
//! journal/STREAM/AFTER   as in the directory of a journal
//! journal/STREAM/….seg
//! ```
//!
//! A name past tar's 255 bytes stands in an entry of its own, as GNU tar writes it.
//!
//! A pack comes from somewhere else, so unpacking trusts nothing: these names and regular files only, with bounds.

use afterbay_journal::{SegmentId, is_copied_stream_name};
use anyhow::{Context, bail, ensure};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::RangeInclusive;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tar::{EntryType, Header};

/// Bytes of all files of a pack, unpacked. A larger pack is neither written nor unpacked.
pub(crate) const UNPACKED_BYTES_MAX: u64 = 1 << 30;
/// Files of a pack.
const FILES_MAX: usize = 1024;
/// Bytes that tar adds: for each file a head of 512 bytes and padding, and as much for a long name; and the end.
const TAR_BYTES_MAX: u64 = FILES_MAX as u64 * 2048 + (64 << 10);
/// Bytes of a name that stands in an entry of its own, with a zero byte at its end.
const LONG_NAME_BYTES: RangeInclusive<u64> = 101..=512;
/// Bytes of the manifest.
const MANIFEST_BYTES_MAX: u64 = 16 << 20;
/// The version of the layout above. A pack of another version is refused.
pub(crate) const VERSION: u64 = 1;

pub(crate) const MANIFEST: &str = "manifest.json";
pub(crate) const JOURNAL: &str = "journal";
const AFTER: &str = "AFTER";
const EXTENSION: &str = ".tar.zst";

/// Whether a file has the name of a pack.
pub(crate) fn is_pack_name(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().ends_with(EXTENSION.as_bytes()))
}

/// Writes a pack, file by file.
pub(crate) struct PackWriter<W: Write> {
    tar: tar::Builder<zstd::Encoder<'static, W>>,
}

impl<W: Write> PackWriter<W> {
    pub(crate) fn new(out: W) -> io::Result<PackWriter<W>> {
        let mut zstd = zstd::Encoder::new(out, zstd::DEFAULT_COMPRESSION_LEVEL)?;
        zstd.include_checksum(true)?;
        Ok(PackWriter { tar: tar::Builder::new(zstd) })
    }

    /// Adds a file. The same files give the same bytes.
    pub(crate) fn add(&mut self, name: &str, bytes: u64, content: impl Read) -> io::Result<()> {
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::Regular);
        header.set_size(bytes);
        header.set_mode(0o600);
        header.set_mtime(0);
        self.tar.append_data(&mut header, name, content)
    }

    pub(crate) fn finish(self) -> io::Result<W> {
        self.tar.into_inner()?.finish()
    }
}

/// Unpacks a pack into an empty directory.
///
/// # Errors
/// The file is no pack, or damaged, or larger than a pack may be. The disk.
pub(crate) fn unpack(pack: &Path, to: &Path) -> anyhow::Result<()> {
    let name = pack.display();
    let file = File::open(pack).with_context(|| name.to_string())?;
    ensure!(file.metadata().with_context(|| name.to_string())?.is_file(), "{name}: not a regular file");
    unpack_from(file, to).with_context(|| name.to_string())
}

fn unpack_from(file: impl Read, to: &Path) -> anyhow::Result<()> {
    let damaged = |error: io::Error| anyhow::anyhow!("the pack is damaged, or no pack: {error}");
    let unzipped = zstd::Decoder::new(file).map_err(damaged)?.take(UNPACKED_BYTES_MAX + TAR_BYTES_MAX);
    let mut archive = tar::Archive::new(unzipped);
    let (mut files, mut room, mut long_name) = (0, UNPACKED_BYTES_MAX, None);
    // Raw: an extension of tar is a kind of entry like any other, and refused. The library would read a long name of any length.
    for entry in archive.entries().map_err(damaged)?.raw(true) {
        let mut entry = entry.map_err(damaged)?;
        let (path, kind) = (entry.path_bytes().into_owned(), entry.header().entry_type());
        if kind == EntryType::GNULongName && LONG_NAME_BYTES.contains(&entry.size()) && long_name.is_none() {
            let mut name = Vec::new();
            entry.read_to_end(&mut name).map_err(damaged)?;
            name.pop_if(|last| *last == 0);
            long_name = Some(name);
            continue;
        }
        let path = long_name.take().unwrap_or(path);
        let shown = String::from_utf8_lossy(&path).into_owned();
        let Some(target) = target(&path).filter(|_| kind == EntryType::Regular) else {
            bail!("not written by `afterbay journal pack`: it has an entry {shown:?} of kind {kind:?}");
        };
        files += 1;
        ensure!(files <= FILES_MAX, "more than {FILES_MAX} files");
        let bytes = entry.size();
        room = room.checked_sub(bytes).with_context(|| {
            format!("{shown}: the pack would have more than {UNPACKED_BYTES_MAX} bytes unpacked")
        })?;
        let target = to.join(target);
        if let Some(dir) = target.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&target);
        let mut file = made.with_context(|| format!("cannot unpack {shown:?}"))?;
        let copied = io::copy(&mut entry, &mut file)
            .with_context(|| format!("{shown}: the pack is damaged, or cannot be unpacked"))?;
        ensure!(copied == bytes, "the pack is damaged: {shown} has {copied} of {bytes} bytes");
    }
    // The checksum stands at the end.
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(damaged)?;
    check_manifest(&to.join(MANIFEST))
}

fn check_manifest(path: &Path) -> anyhow::Result<()> {
    let Ok(file) = File::open(path) else { bail!("not written by `afterbay journal pack`: no {MANIFEST}") };
    let manifest: serde_json::Value = serde_json::from_reader(file.take(MANIFEST_BYTES_MAX))
        .with_context(|| format!("not written by `afterbay journal pack`: {MANIFEST}"))?;
    match manifest["pack"].as_u64() {
        Some(VERSION) => Ok(()),
        Some(version) => bail!("version {version} of a pack; this Afterbay reads version {VERSION}"),
        None => bail!("not written by `afterbay journal pack`: {MANIFEST} has no version"),
    }
}

/// The relative path at which an entry of a pack is unpacked. `None` if a pack has no such entry.
fn target(name: &[u8]) -> Option<PathBuf> {
    let name = std::str::from_utf8(name).ok()?;
    let parts: Vec<&str> = name.split('/').collect();
    let is_known = match parts[..] {
        [MANIFEST] => true,
        [JOURNAL, stream, file] => {
            is_copied_stream_name(stream) && (file == AFTER || SegmentId::parse(file).is_some())
        }
        _ => false,
    };
    is_known.then(|| parts.iter().collect())
}
