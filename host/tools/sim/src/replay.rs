//! Reads frames from a directory, to send them unchanged: fixtures, or the output of
//! `afterbay journal export`.

use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::bounds::MAX_REPLAY_BYTES;
use crate::frames::{Frame, FrameKind};

/// The reason why a directory could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A system call failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The error of the call.
        source: std::io::Error,
    },
    /// The directory has no matching file.
    #[error("{}: no file ends in .{suffix}", path.display())]
    Empty {
        /// The directory.
        path: PathBuf,
        /// The suffix of the files.
        suffix: String,
    },
    /// The files are too large.
    #[error("{}: {bytes} bytes are over the limit of {MAX_REPLAY_BYTES}", path.display())]
    TooLarge {
        /// The directory.
        path: PathBuf,
        /// The bytes up to the file that exceeds the limit.
        bytes: u64,
    },
}

/// Reads the files of a directory whose names end in `.suffix` (`msgpack`, `pickle`, `bin`), in the order of
/// their names, each as one frame. Their requests are not recorded: fixtures form no whole stream, so that
/// only bytes can be compared.
pub fn directory(path: &Path, suffix: &str) -> Result<Vec<Frame>, ReplayError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| ReplayError::Io { path, source }
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(io(path))? {
        let file = entry.map_err(io(path))?.path();
        if file.extension().is_some_and(|extension| extension == suffix) {
            files.push(file);
        }
    }
    if files.is_empty() {
        return Err(ReplayError::Empty { path: path.to_owned(), suffix: suffix.to_owned() });
    }
    files.sort_unstable();
    let mut bytes = 0;
    let mut frames = Vec::with_capacity(files.len());
    for file in files {
        bytes += std::fs::metadata(&file).map_err(io(&file))?.len();
        if bytes > MAX_REPLAY_BYTES {
            return Err(ReplayError::TooLarge { path: path.to_owned(), bytes });
        }
        let frame = std::fs::read(&file).map_err(io(&file))?;
        frames.push(Frame::new(Bytes::from(frame), FrameKind::Unknown));
    }
    Ok(frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_in_the_order_of_their_names_without_other_files() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [("b.bin", "2"), ("a.bin", "1"), ("c.json", "3")] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let frames = directory(dir.path(), "bin").unwrap();
        let bytes: Vec<&[u8]> = frames.iter().map(|frame| frame.bytes.as_ref()).collect();
        assert_eq!(bytes, [b"1", b"2"]);
        assert!(matches!(directory(dir.path(), "pickle"), Err(ReplayError::Empty { .. })));
    }

    #[test]
    fn a_directory_over_the_limit_is_refused_before_it_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let large = std::fs::File::create(dir.path().join("a.bin")).unwrap();
        // The file is sparse: it has a length but no contents.
        large.set_len(MAX_REPLAY_BYTES + 1).unwrap();
        assert!(matches!(directory(dir.path(), "bin"), Err(ReplayError::TooLarge { .. })));
    }
}
