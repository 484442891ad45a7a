//! File descriptors: the limit of the process, and how it is shared out.
//!
//! Streams and the journal come first: their descriptors are bounded by the configuration, and the admin addresses get a
//! small part of what there is.

use afterbay_config::{Config, TapSocket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Connections of one admin address, where the limit is high enough.
const ADMIN_MAX: u64 = 64;
/// Descriptors of one stream beside its connections: segments that are written and read, polls, wakers.
const STREAM: usize = 32;
/// Descriptors of the process beside its streams: the runtime, watches over files, sources of load, what is compiled.
const PROCESS: usize = 64;

/// Raises the soft limit to the hard one.
pub(crate) fn raise() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // Where it is refused, the limit stays as it is.
        let _refused = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}

/// The soft limit.
pub(crate) fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Connections that each admin address may have: all eight together take an eighth of the descriptors.
pub(crate) fn for_admin(limit: u64) -> usize {
    (limit / 64).clamp(2, ADMIN_MAX) as usize
}

/// The warning for a limit that is too low for all connections that the configuration allows.
pub(crate) fn too_few(config: &Config, limit: u64) -> Option<String> {
    let of_streams = config.streams.iter().map(|stream| {
        let taps = stream.taps.iter().map(|tap| match tap.socket {
            TapSocket::Push(_) => 1,
            TapSocket::Pub { max_subscribers, .. } => 1 + max_subscribers,
        });
        STREAM + stream.max_peers + stream.sinks.len() + taps.sum::<usize>()
    });
    let admin = config.admin.listen.len() * (1 + for_admin(limit));
    let most = (PROCESS + of_streams.sum::<usize>() + admin) as u64;
    (most > limit).then(|| {
        format!(
            "the limit is {limit} file descriptors, and this configuration allows connections for {most}: raise it \
             (ulimit -n, LimitNOFILE=), or lower max_peers and max_subscribers"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterbay_config::Stream;

    #[test]
    fn the_admin_addresses_take_at_most_an_eighth_of_the_descriptors() {
        for limit in [128, 256, 1024, 4096, u64::MAX] {
            assert!(8 * for_admin(limit) as u64 <= limit / 8, "{limit}");
        }
        assert_eq!((for_admin(1024), for_admin(1 << 20)), (16, 64));
    }

    #[test]
    fn a_limit_below_what_the_configuration_allows_is_told_with_both_numbers() {
        let endpoint = |name: &str| format!("ipc:///run/{name}").parse().unwrap();
        let mut stream = Stream::new("a".parse().unwrap(), endpoint("in"), endpoint("out"));
        stream.max_peers = 1000;
        let config = Config::new(stream, "/var/lib/afterbay");
        let told = too_few(&config, 1024).unwrap();
        assert!(told.contains("is 1024 file") && told.contains("for 1131"), "{told}");
        assert_eq!(too_few(&config, 4096), None);
    }
}
