//! The plugins of a stream.

use afterbay_types::Engine;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::Name;
use crate::units::{Size, Time};

/// One plugin of a stream's chain.
#[derive(Clone, Debug, PartialEq)]
pub struct Plugin {
    /// The plugin's name in logs and metrics.
    pub name: Name,
    /// The source of the plugin's code.
    pub component: Component,
    /// The digest that the code must have.
    pub sha256: Option<[u8; 32]>,
    /// The digests of `plugins.allow`, of which the code must have one. `None`: any code may run. A plugin in the binary needs no
    /// entry.
    pub allowed: Option<Arc<[[u8; 32]]>>,
    /// Whether Afterbay applies the plugin's verdicts.
    pub mode: Mode,
    /// The limits of one instance.
    pub limits: Limits,
    /// The treatment of a batch whose call failed.
    pub on_fault: OnFault,
    /// The number of faults after which the plugin leaves the chain.
    pub quarantine: Quarantine,
    /// The host interfaces that the plugin may call.
    pub grant: Vec<Grant>,
    /// Settings for `configure`, as JSON. The text of each named file is already filled in.
    pub settings: serde_json::Map<String, serde_json::Value>,
    /// The files that the settings name.
    pub files: Vec<PathBuf>,
    /// The place of the plugin in its file.
    pub place: Place,
    /// The place of its settings, or of the plugin if it has none.
    pub settings_place: Place,
}

/// A place in a configuration's file. Two places are always equal: a plugin that moved in its file is the same plugin.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The key, like `stream[0].plugin[1]`.
    pub key: String,
}

impl PartialEq for Place {
    fn eq(&self, _: &Place) -> bool {
        true
    }
}

impl Plugin {
    /// A plugin without settings and with defaults for everything else.
    pub fn new(name: Name, component: Component) -> Plugin {
        Plugin {
            name,
            component,
            sha256: None,
            allowed: None,
            mode: Mode::default(),
            limits: Limits::default(),
            on_fault: OnFault::default(),
            quarantine: Quarantine::default(),
            grant: Grant::DEFAULT.to_vec(),
            settings: serde_json::Map::new(),
            files: Vec::new(),
            place: Place::default(),
            settings_place: Place::default(),
        }
    }
}

/// The engines that a plugin serves, and the grants and limits for which the operator sets none.
#[derive(Clone, Debug, PartialEq)]
pub struct PluginDefaults {
    /// The engines. A stream of another engine refuses the plugin.
    pub engines: Vec<Engine>,
    /// The host interfaces that the plugin may call.
    pub grant: Vec<Grant>,
    /// The limits of one instance.
    pub limits: Limits,
}

impl Default for PluginDefaults {
    /// The defaults of a plugin that is not in the binary.
    fn default() -> PluginDefaults {
        let engines = Engine::WORDS.map(|(_, engine)| engine).to_vec();
        PluginDefaults { engines, grant: Grant::DEFAULT.to_vec(), limits: Limits::default() }
    }
}

/// Whether Afterbay applies a plugin's verdicts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Afterbay applies them.
    #[default]
    Live,
    /// Afterbay counts them, and compares them with the verdicts of a live plugin on the same rows, if `of` names one.
    Shadow {
        /// The live plugin.
        of: Option<Name>,
    },
}

/// A host interface that a plugin may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Lines in Afterbay's log.
    Log,
    /// The plugin's own metrics on `/metrics`.
    Metrics,
    /// The readiness of the stream.
    Health,
    /// Values that outlive the plugin's instance and the process.
    Store,
    /// Calls to the operator's services.
    Call,
    /// The tokenizer of the stream's model.
    Tokenizer,
    /// The state of the stream's queues, of its readers and of the scheduler.
    Signals,
    /// The attributes of requests.
    Request,
}

impl Grant {
    /// The default grants.
    pub const DEFAULT: [Grant; 2] = [Grant::Log, Grant::Metrics];

    /// Every grant, with its word in a configuration.
    pub const WORDS: [(&str, Grant); 8] = [
        ("log", Grant::Log),
        ("metrics", Grant::Metrics),
        ("health", Grant::Health),
        ("store", Grant::Store),
        ("call", Grant::Call),
        ("tokenizer", Grant::Tokenizer),
        ("signals", Grant::Signals),
        ("request", Grant::Request),
    ];

    /// The grant's word in a configuration.
    #[must_use]
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, grant)| *grant == self).map_or("", |(word, _)| *word)
    }
}

/// The source of a plugin's code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Component {
    /// A plugin in the binary, by name.
    Builtin(String),
    /// The project's directory. Afterbay runs the component of the last build.
    Project(PathBuf),
    /// A component file. Afterbay reloads it when it changes.
    File(PathBuf),
    /// A registry reference, `oci://…`, pinned by its digest.
    Registry(String),
}

/// The limits of one plugin instance. Exceeding memory or deadline is a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of linear memory.
    pub memory_bytes: u64,
    /// CPU time of one call.
    pub deadline: Duration,
    /// The longest time for which the plugin may hold a row. Then the row is sent.
    pub hold: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { memory_bytes: 64 << 20, deadline: Duration::from_millis(2), hold: Duration::from_secs(1) }
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (memory, deadline, hold) = (Size(self.memory_bytes), Time(self.deadline), Time(self.hold));
        write!(f, "memory {memory}, deadline {deadline}, hold {hold}")
    }
}

/// The consequence for a batch that a plugin did not judge, because it faulted or has no instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFault {
    /// The batch passes unchanged.
    #[default]
    Bypass,
    /// The batch's requests end: nothing passes that the plugin has not judged.
    Terminate,
}

/// The number of faults, within a time, after which a plugin leaves the chain. It returns when it is reinstated or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quarantine {
    /// The number of faults. 0: the plugin never leaves.
    pub faults: usize,
    /// The most time from the first fault to the last.
    pub within: Duration,
}

impl Default for Quarantine {
    fn default() -> Quarantine {
        Quarantine { faults: 5, within: Duration::from_secs(60) }
    }
}
