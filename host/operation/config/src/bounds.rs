//! Every bound of the configuration, in one place. A value outside its bound is an error that names the value and the bound.

use std::time::Duration;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The longest config file, in bytes. A longer one is refused before it is parsed.
pub const FILE_BYTES_MAX: u64 = MIB;
/// The most problems that are reported for one file. Further ones are counted.
pub const PROBLEMS_MAX: usize = 100;
/// The most streams of one process. Each is a thread.
pub const STREAMS_MAX: usize = 256;
/// The most sinks of one stream.
pub const SINKS_MAX: usize = 64;
/// The most addresses of `admin.listen`.
pub const ADMIN_LISTEN_MAX: usize = 8;
/// The most plugins of one stream.
pub const PLUGINS_MAX: usize = 16;
/// The most plugins of all streams. The instance pool has 512 places, and a plugin needs two while it is reloaded.
pub const PLUGINS_OF_ALL_MAX: usize = 256;
/// The longest settings of one plugin, in bytes of JSON.
pub const SETTINGS_BYTES_MAX: usize = MIB as usize;

/// Shortest and longest `clients.keep`.
pub const CLIENTS_KEEP: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(365 * 86_400));
/// Fewest and most `clients.connections`.
pub const CLIENTS_CONNECTIONS: (u64, u64) = (1, 100_000);

/// The most `[[call]]` of a configuration.
pub const CALLS_MAX: usize = 64;
/// Shortest and longest `call.timeout`.
pub const CALL_TIMEOUT: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(60));
/// Fewest and most `call.max_in_flight`.
pub const CALLS_IN_FLIGHT: (u64, u64) = (1, 4096);
/// Smallest and largest `call.max_body`.
pub const CALL_BODY_BYTES: (u64, u64) = (KIB, 16 * MIB);
/// The most `call.headers` of one endpoint.
pub const CALL_HEADERS_MAX: usize = 16;
/// The longest value of a header, in bytes.
pub const CALL_HEADER_BYTES_MAX: u64 = 8 * KIB;
/// Fewest and most `call.breaker.failures`. Afterbay stores the time of each.
pub const BREAKER_FAILURES: (u64, u64) = (0, 1000);
/// Shortest and longest `call.breaker.within`.
pub const BREAKER_WITHIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3600));
/// Shortest and longest `call.breaker.open`.
pub const BREAKER_OPEN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3600));

/// Most servers in `replicate.nats`. A server of a cluster names the others itself.
pub const NATS_SERVERS_MAX: usize = 16;

/// Bytes of `archive.url`. With the longest name of an object, a key stays below the 1,024 bytes of S3.
pub const ARCHIVE_URL_BYTES_MAX: usize = 512;
/// Least and most `traces.sample`. The most is the default.
pub const TRACES_SAMPLE: (f64, f64) = (0.0, 1.0);

/// The most rules of `stream.attribute` in one stream.
pub const ATTRIBUTE_RULES_MAX: usize = 64;
/// The longest attributes of one request, in bytes of JSON.
pub const ATTRIBUTES_BYTES_MAX: usize = 16 << 10;

/// Smallest and largest `stream.max_message`. The largest is the journal's bound for a frame.
pub const MAX_MESSAGE_BYTES: (u64, u64) = (64 * KIB, GIB);
/// Fewest and most `stream.max_peers`.
pub const MAX_PEERS: (u64, u64) = (1, 4096);
/// Fewest and most `sink.queue.frames`.
pub const QUEUE_FRAMES: (u64, u64) = (1, 1_000_000);
/// Smallest and largest `sink.queue.bytes`.
pub const QUEUE_BYTES: (u64, u64) = (64 * KIB, 64 * GIB);
/// Smallest and largest `memory.waiting`.
pub const MEMORY_WAITING: (u64, u64) = (1 << 20, 1 << 40);
/// Shortest and longest `leases.max_time`. 0 allows no lease.
pub const LEASE_TIME: (Duration, Duration) = (Duration::ZERO, Duration::from_secs(86_400));
/// Fewest and most `leases.max_count`.
pub const LEASES: (u64, u64) = (1, 65_536);
/// Fewest and most `stream.join.max_rows`.
pub const JOIN_ROWS: (u64, u64) = (16, 65_536);
/// First and last `stream.signals.dp_rank`: SGLang's load file counts its ranks in 16 bits.
pub const DP_RANK: (u64, u64) = (0, 65_534);
/// Shortest and longest `stream.signals.stale_after`.
pub const STALE_AFTER: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3600));
/// The longest instance id, in bytes. It becomes part of a file name.
pub const INSTANCE_ID_BYTES_MAX: usize = 128;
/// Smallest and largest `plugin.limits.memory`. A wasm32 memory has at most 4 GiB.
pub const PLUGIN_MEMORY_BYTES: (u64, u64) = (MIB, 4 * GIB);
/// Shortest and longest `plugin.limits.deadline`.
pub const PLUGIN_DEADLINE: (Duration, Duration) = (Duration::from_micros(100), Duration::from_secs(10));
/// Most digests in `plugins.allow`.
pub const PLUGINS_ALLOW_MAX: usize = 256;
/// Fewest and most `plugin.quarantine.faults`. Afterbay stores the time of each.
pub const QUARANTINE_FAULTS: (u64, u64) = (0, 1000);
/// Shortest and longest `plugin.quarantine.within`.
pub const QUARANTINE_WITHIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(86_400));
/// Shortest and longest `plugin.limits.hold`.
pub const PLUGIN_HOLD: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(60));
/// Shortest and longest `journal.sync_interval`.
pub const SYNC_INTERVAL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(60));
/// Smallest and largest `journal.segment`. The largest is the journal's own bound.
pub const SEGMENT_BYTES: (u64, u64) = (MIB, 2 * GIB);
/// `journal.retain.bytes` has room for at least this many segments per stream: the open one and one that has ended.
pub const RETAIN_SEGMENTS_MIN: u64 = 2;
/// Largest `journal.retain.bytes`.
pub const RETAIN_BYTES_MAX: u64 = 1 << 50;
/// Shortest and longest `journal.retain.age`.
pub const RETAIN_AGE: (Duration, Duration) =
    (Duration::from_secs(60), Duration::from_secs(10 * 365 * 86_400));
/// The most rules of `journal.erase`.
pub const ERASE_RULES_MAX: usize = 64;
/// Bytes of the name and the value of an attribute that the journal keeps.
pub const ERASE_TEXT_BYTES_MAX: usize = 256;
/// Shortest and longest `journal.erase.after`.
pub const ERASE_AFTER: (Duration, Duration) = RETAIN_AGE;
/// Shortest and longest `journal.abandon_after`.
pub const ABANDON_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30 * 86_400));
