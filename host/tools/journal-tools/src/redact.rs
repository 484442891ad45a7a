//! A configuration without secrets.

use toml::{Table, Value};

/// Stands for a text that was left out.
const LEFT_OUT: &str = "(left out)";

/// A configuration without secrets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Redacted {
    /// The configuration, without comments.
    pub(crate) text: String,
    /// The keys whose values were left out, wholly or in part.
    pub(crate) left_out: Vec<String>,
}

/// Leaves out what may be a secret: values under the names of secrets (passwords, tokens, keys, headers), user and password of a
/// URL, and its query. A key that names a file or a variable with a secret stays.
///
/// # Errors
/// The text is no TOML.
pub(crate) fn without_secrets(text: &str) -> Result<Redacted, toml::de::Error> {
    let mut table: Table = text.parse()?;
    let mut left_out = Vec::new();
    in_table(&mut table, "", None, &mut left_out);
    // A table that was read can be written.
    Ok(Redacted { text: toml::to_string(&table).unwrap_or_default(), left_out })
}

/// A name that says that the value is a secret.
#[derive(Clone, Copy)]
struct SecretName {
    /// Whether a number may be the secret. A plugin may call the number of a token `token`.
    may_be_number: bool,
}

/// Whether the value of a key is a secret.
fn secret_name(key: &str) -> Option<SecretName> {
    let key = key.to_ascii_lowercase();
    let words: Vec<&str> = key.split(|of: char| !of.is_ascii_alphanumeric()).collect();
    let is_one = |word: &&str| {
        ["auth", "cookie", "cookies", "headers", "passphrase", "bearer", "apikey", "accesskey"].contains(word)
            || ["password", "passwd", "secret", "credential", "authorization"]
                .iter()
                .any(|it| word.contains(it))
    };
    let is_key = |pair: &[&str]| {
        ["key", "keys"].contains(&pair[1])
            && ["access", "account", "api", "encryption", "license", "private", "signing"].contains(&pair[0])
    };
    if words.iter().any(is_one) || words.windows(2).any(is_key) {
        return Some(SecretName { may_be_number: true });
    }
    let is_token = words.iter().any(|word| word.ends_with("token"));
    is_token.then_some(SecretName { may_be_number: false })
}

/// Whether the key says where a secret is, or which one.
fn is_place(key: &str) -> bool {
    let last = key.rsplit(|of: char| !of.is_ascii_alphanumeric()).next().unwrap_or_default();
    ["file", "files", "env", "path", "dir", "id", "ids"].iter().any(|it| last.eq_ignore_ascii_case(it))
}

fn in_table(table: &mut Table, path: &str, above: Option<SecretName>, left_out: &mut Vec<String>) {
    for (key, value) in table.iter_mut() {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let secret = above.or(secret_name(key)).filter(|_| !is_place(key));
        in_value(value, &path, secret, left_out);
    }
}

fn in_value(value: &mut Value, path: &str, secret: Option<SecretName>, left_out: &mut Vec<String>) {
    match value {
        Value::Table(table) => in_table(table, path, secret, left_out),
        Value::Array(items) => {
            for (at, item) in items.iter_mut().enumerate() {
                in_value(item, &format!("{path}[{at}]"), secret, left_out);
            }
        }
        Value::String(text) => {
            let kept = if secret.is_some() { LEFT_OUT.to_owned() } else { without_credentials(text) };
            if *text != kept {
                left_out.push(path.to_owned());
                *text = kept;
            }
        }
        Value::Integer(_) | Value::Float(_) if secret.is_some_and(|secret| secret.may_be_number) => {
            left_out.push(path.to_owned());
            *value = Value::String(LEFT_OUT.to_owned());
        }
        _ => {}
    }
}

/// A text without the user, the password and the query of each URL in it. A whole key or authorization is left out.
fn without_credentials(text: &str) -> String {
    let begins = |scheme: &str| text.get(..scheme.len()).is_some_and(|it| it.eq_ignore_ascii_case(scheme));
    if begins("bearer ") || begins("basic ") || text.contains("-----BEGIN ") {
        return LEFT_OUT.to_owned();
    }
    let mut kept = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + "://".len());
        kept += before;
        let end = after.find(|of: char| of.is_whitespace() || ",\"'<>".contains(of)).unwrap_or(after.len());
        let (url, others) = after.split_at(end);
        let url = url.split_once('?').map_or(url, |(url, _)| url);
        let authority = url.find(['/', '#']).unwrap_or(url.len());
        let host = url[..authority].rfind('@').map_or(0, |at| at + 1);
        kept += &url[host..];
        rest = others;
    }
    kept + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_left_out_by_the_names_of_their_keys_and_by_the_forms_of_their_values() {
        let text = r#"
            # password of the admin: hunter2
            [admin]
            token_file = "/run/secrets/afterbay"
            [archive]
            url = "https://key:hunter2@store.example/bucket?sig=hunter2#part"
            [replicate]
            nats = "nats://user:hunter2@a:4222,tls://user:hunter2@b:4222"
            [[stream]]
            name = "decode"
            abort = { http = "http://127.0.0.1:30000", api_key_env = "SGLANG_API_KEY" }
            [[stream.plugin]]
            settings = { api_key = "hunter2", apiToken = "hunter2", db = { PASSWORD = 12345, hosts = ["a"] }, headers = { x = ["hunter2"], y = { env = "Y" } } }
            [[stream.plugin]]
            settings = { stop_token = 7, eos_token_id = 8, max_tokens = 9, note = "Bearer hunter2", pem = "-----BEGIN KEY hunter2" }
        "#;
        let Redacted { text, left_out } = without_secrets(text).unwrap();
        assert!(!text.contains("hunter2") && !text.contains("12345"), "{text}");
        let table: Table = text.parse().unwrap();
        assert_eq!(table["archive"]["url"].as_str(), Some("https://store.example/bucket"));
        assert_eq!(table["replicate"]["nats"].as_str(), Some("nats://a:4222,tls://b:4222"));
        assert_eq!(table["admin"]["token_file"].as_str(), Some("/run/secrets/afterbay"));
        assert_eq!(table["stream"][0]["abort"]["api_key_env"].as_str(), Some("SGLANG_API_KEY"));
        let settings = &table["stream"][0]["plugin"][1]["settings"];
        let numbers = ["stop_token", "eos_token_id", "max_tokens"].map(|key| settings[key].as_integer());
        assert_eq!(numbers, [Some(7), Some(8), Some(9)]);
        assert_eq!(table["stream"][0]["plugin"][0]["settings"]["headers"]["y"]["env"].as_str(), Some("Y"));
        let of = |plugin: usize, key: &str| format!("stream[0].plugin[{plugin}].settings.{key}");
        let expected = [
            "archive.url".to_owned(),
            "replicate.nats".to_owned(),
            of(0, "apiToken"),
            of(0, "api_key"),
            of(0, "db.PASSWORD"),
            of(0, "headers.x[0]"),
            of(1, "note"),
            of(1, "pem"),
        ];
        assert_eq!(left_out, expected);
    }
}
