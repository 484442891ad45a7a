//! The limit of file descriptors, and the share of the admin addresses.
//!
//! The configuration bounds the descriptors of streams and journal. The admin addresses together get an eighth of the limit.

use afterbay_config::Config;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Most connections of one admin address.
const ADMIN_MAX: u64 = 64;
/// Descriptors of one connection to a sender or reader: the socket and its memory, and their duplicates in the store.
const CONNECTION: usize = 4;
/// Descriptors of one stream beside its connections: journal segments, polls, wakers.
const STREAM: usize = 32;
/// Descriptors of the process beside its streams: the runtime, file watches, load sources, compiled code.
const PROCESS: usize = 64;

/// Raises the soft limit to the hard one.
pub(crate) fn raise() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // If the system refuses, the limit stays.
        let _refused = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}

/// The soft limit.
pub(crate) fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// The connections that each admin address may have. All eight addresses together take an eighth of the descriptors.
pub(crate) fn for_admin(limit: u64) -> usize {
    (limit / 64).clamp(2, ADMIN_MAX) as usize
}

/// A warning, if the limit is too low for all connections that the configuration allows.
pub(crate) fn warning(config: &Config, limit: u64) -> Option<String> {
    let of_streams =
        config.streams.iter().map(|stream| STREAM + CONNECTION * (stream.max_peers + stream.sinks.len()));
    let admin = config.admin.listen.len() * (1 + for_admin(limit));
    let most = (PROCESS + of_streams.sum::<usize>() + admin) as u64;
    (most > limit).then(|| {
        format!(
            "the limit is {limit} file descriptors, and this configuration allows connections for {most}: raise it \
             (ulimit -n, LimitNOFILE=), or lower max_peers"
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
    fn a_limit_below_what_the_configuration_allows_is_a_warning_with_both_numbers() {
        let endpoint = |name: &str| format!("ipc:///run/{name}").parse().unwrap();
        let mut stream = Stream::new("a".parse().unwrap(), endpoint("in"), endpoint("out"));
        stream.max_peers = 1000;
        let config = Config::new(stream, "/var/lib/afterbay");
        let text = warning(&config, 4096).unwrap();
        assert!(text.contains("is 4096 file") && text.contains("for 4230"), "{text}");
        assert_eq!(warning(&config, 8192), None);
    }
}
