//! Seeded requests.

use super::admin_request;

#[path = "../../../../../tests/src/mutate.rs"]
mod mutate;

/// A valid request of each kind, on each address.
fn seeds() -> Vec<Vec<u8>> {
    let read = [
        "/",
        "/ui/app.js",
        "/metrics",
        "/healthz",
        "/readyz",
        "/v1/status",
        "/v1/status/stream",
        "/v1/status/history?by=minute&last=5",
        "/v1/plugins",
        "/v1/requests",
        "/v1/requests/private-rid",
        "/v1/steps?stream=s&rid=private-rid&since=10m",
        "/v1/steps?frame=1",
        "/v1/requests/a/attributes",
        "/v1/requests?stream=s&rid=priv&state=live&finish=stop&plugin=a&limit=10&after=5.6.a",
    ];
    let changes = [
        ("POST", "/v1/requests/private-rid/abort", r#"{"reason": "abort"}"#),
        ("POST", "/v1/requests//abort", "{}"),
        ("PUT", "/v1/requests/a/attributes", r#"{"tenant": "a", "deep": {"b": [1, null]}}"#),
        ("DELETE", "/v1/requests/a/attributes", ""),
        ("POST", "/v1/reload", "{}"),
        ("POST", "/v1/plugins/guard/reinstate", r#"{"stream": "s"}"#),
        ("POST", "/v1/plugins/guard/promote", "{}"),
        ("POST", "/v1/upgrade", r#"{"binary": "/nowhere/afterbay"}"#),
    ];
    let mut seeds = Vec::new();
    let token = "Authorization: Bearer s3cret\n";
    for mode in 0..3 {
        for (has_token, token) in [(0, ""), (0x80, token)] {
            let head = format!("Host: localhost:9464\n{token}");
            let mut add = |text: String| seeds.push([&[mode | has_token], text.as_bytes()].concat());
            read.iter().for_each(|path| add(format!("GET {path} HTTP/1.1\n{head}\n")));
            for (method, path, body) in changes {
                add(format!("{method} {path}\n{head}Content-Type: application/json\n\n{body}"));
            }
            add(format!(
                "POST /v1/reload\n{head}Origin: http://localhost:9464\nContent-Type: application/json\n\n"
            ));
        }
    }
    seeds
}

#[test]
fn any_request_is_answered_or_refused_as_the_rules_of_its_address_say() {
    mutate::run(&admin_request, &seeds(), 1);
}
