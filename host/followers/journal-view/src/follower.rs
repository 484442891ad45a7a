//! The process that follows a journal: its binary, and its status file for the process that writes the journal.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::path::{Path, PathBuf};

use afterbay_journal::followers_dir;
use afterbay_journal::storage::{Storage, read_full, write_all};
use serde::{Deserialize, Serialize};

/// The name of the binary.
const BINARY: &str = "afterbay-follow";
const STATUS: &str = "STATUS";
const PART: &str = "STATUS.part";
/// Largest file that is read.
const BYTES_MAX: usize = 4 << 20;

/// The status of the process that follows a journal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FollowerStatus {
    /// The process.
    pub pid: u32,
    /// Whether it is the child of an `afterbay run`.
    pub is_child: bool,
    /// The time of the status, Unix nanoseconds.
    pub unix_ns: u64,
    /// The copies that the process makes.
    pub copies: Vec<CopyStatus>,
    /// The rids of live requests with a lease that clients read now.
    pub leased: Vec<String>,
    /// The conditions that degrade the process, by key.
    pub conditions: BTreeMap<String, String>,
    /// The metrics of the process, as text.
    pub metrics: String,
    /// The number of published events of each kind.
    pub events: BTreeMap<String, u64>,
}

/// A copy of the journal, or what else is made of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CopyStatus {
    /// The table of the configuration.
    pub copy: String,
    /// The URL or the directory of the copy.
    pub to: String,
    /// `working` or `failing`.
    pub state: String,
    /// The time for which the oldest data waits that the copy lacks.
    pub lag_seconds: f64,
    /// The last error, while the copy fails.
    pub error: Option<String>,
}

/// An answer of `afterbay-follow copy`: one line of JSON after the copy was made, and one for each time on its standard input, in
/// milliseconds, for which it follows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CopyOfJournals {
    /// The bytes of the journals that are in no message: the stream, and a sentence.
    pub holes: Vec<(String, String)>,
    /// Facts about the copy that are no holes, as sentences.
    pub notes: Vec<String>,
    /// The reason why the servers cannot be reached now.
    pub outage: Option<String>,
    /// The reason why there is no copy.
    pub error: Option<String>,
}

/// The binary `afterbay-follow`, in the directory of this process's own binary.
///
/// # Errors
/// It is not there. The sentence names the path.
pub fn follow_binary() -> Result<PathBuf, String> {
    let own =
        std::env::current_exe().map_err(|error| format!("the path of this binary is unknown: {error}"))?;
    let binary = own.with_file_name(BINARY);
    match binary.is_file() {
        true => Ok(binary),
        false => Err(format!("{} is missing: install it beside {}", binary.display(), own.display())),
    }
}

impl FollowerStatus {
    /// Reads the file. `None` if there is none, or nobody can read it.
    pub fn read(storage: &dyn Storage, journal: &Path) -> Option<FollowerStatus> {
        let file = storage.open(&followers_dir(journal).join(STATUS), false).ok()?;
        let bytes = usize::try_from(file.bytes().ok()?).ok().filter(|bytes| *bytes <= BYTES_MAX)?;
        let mut text = vec![0; bytes];
        let read = read_full(&*file, &mut text, 0).ok()?;
        serde_json::from_slice(&text[..read]).ok()
    }

    /// Replaces the file, whole or not at all. It need not outlive a power cut.
    ///
    /// # Errors
    /// The disk.
    pub fn write(&self, storage: &dyn Storage, journal: &Path) -> std::io::Result<()> {
        let dir = followers_dir(journal);
        let bytes = serde_json::to_vec(self)?;
        let file = storage.create(&dir.join(PART))?;
        write_all(&*file, &mut [IoSlice::new(&bytes)], 0)?;
        storage.rename(&dir.join(PART), &dir.join(STATUS))
    }
}
