//! URLs of HTTP, `http://HOST[:PORT][/PATH][?QUERY]`, and of NATS, `nats://HOST[:PORT]`. Nothing is resolved or requested here.

/// Checks a URL of `http://` or `https://`. The check is strict enough that every HTTP client accepts the result.
pub(crate) fn check(url: &str) -> Result<(), &'static str> {
    let rest = url.strip_prefix("https://").or(url.strip_prefix("http://"));
    check_rest(rest.ok_or("does not begin with http:// or https://")?)
}

/// Checks a URL of `nats://` or `tls://`, which has no path.
pub(crate) fn check_nats(url: &str) -> Result<(), &'static str> {
    let rest = url.strip_prefix("nats://").or(url.strip_prefix("tls://"));
    let rest = rest.ok_or("does not begin with nats:// or tls://")?;
    check_rest(rest)?;
    if rest.contains(['/', '?']) { Err("has a path") } else { Ok(()) }
}

/// Checks a URL from the host on.
fn check_rest(rest: &str) -> Result<(), &'static str> {
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    if authority.contains('@') {
        return Err("has a user");
    }
    // The colons of an IPv6 address are inside brackets.
    let inside = authority.rfind(']').map_or(0, |at| at + 1);
    let (host, port) = match authority[inside..].split_once(':') {
        Some((name, port)) => (&authority[..inside + name.len()], Some(port)),
        None => (authority, None),
    };
    let is_host = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']').is_some_and(|it| it.parse::<std::net::Ipv6Addr>().is_ok()),
        None => !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c)),
    };
    if !is_host {
        return Err("has no host");
    }
    let is_port = |port: &str| {
        port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
    };
    if port.is_some_and(|port| !is_port(port)) {
        return Err("has a port that is not 1 to 65535");
    }
    let is_path = |c: char| c.is_ascii_alphanumeric() || "/?&=%._~-:+,;@!$'()*".contains(c);
    if !path.chars().all(is_path) {
        return Err("has a character in its path that no URL has");
    }
    Ok(())
}

/// A URL for a message: without a user, and without the query, which may contain a key.
pub(crate) fn shown(url: &str) -> String {
    let url = url.split('?').next().unwrap_or_default();
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://***@{rest}"),
        (None, Some((_, rest))) => format!("***@{rest}"),
        (_, None) => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{check, check_nats};

    #[test]
    fn a_url_has_a_host_and_perhaps_a_port_and_a_path() {
        let good = ["127.0.0.1:30000/metrics", "[::1]:1/metrics?a=b", "sglang-0.local", "h:65535", "h?x"];
        for rest in good {
            assert_eq!(check(&format!("http://{rest}")), Ok(()), "{rest}");
        }
        let hosts =
            ["", "/metrics", ":1/metrics", "::1/metrics", "[::1/metrics", "[::1]x:1/metrics", "h h/m"];
        let ports = ["h:/metrics", "h:0/metrics", "h:65536/metrics", "h:+1/metrics", "h:1:2/metrics"];
        let others = ["u:p@h/metrics", "h/met rics", "h/metrics#top"];
        for rest in hosts.iter().chain(&ports).chain(&others) {
            assert!(check(&format!("http://{rest}")).is_err(), "{rest}");
        }
        for url in ["nats://127.0.0.1", "tls://nats.local:4222", "nats://[::1]:4222"] {
            assert_eq!(check_nats(url), Ok(()), "{url}");
        }
        for url in ["nats://h/x", "nats://u:p@h", "nats://", "ws://h", "h:4222", "nats://h:0"] {
            assert!(check_nats(url).is_err(), "{url}");
        }
        for url in ["", "127.0.0.1:30000/metrics", "ftp://127.0.0.1/metrics", "HTTP://h"] {
            assert!(check(url).is_err(), "{url}");
        }
    }
}
