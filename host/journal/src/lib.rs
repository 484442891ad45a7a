//! The per-request log: segments, index, recovery, retention.
