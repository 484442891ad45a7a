//! The filter of the list of requests, as typed after `/`.

/// The words that stand before a colon, each a parameter of `GET /v1/requests`.
const NAMES: [&str; 5] = ["rid", "stream", "state", "finish", "plugin"];
/// The states of a request.
const STATES: [&str; 3] = ["live", "finished", "abandoned"];
/// Most characters of a filter.
pub(crate) const CHARS_MAX: usize = 256;

/// Parses words such as `chatcmpl- state:live plugin:redact` into parameters. A word without a name is the beginning of
/// the rid.
///
/// # Errors
/// A name twice, a name without a value, or an unknown state.
pub(crate) fn parse(text: &str) -> Result<Vec<(&'static str, String)>, String> {
    let mut query: Vec<(&'static str, String)> = Vec::new();
    for word in text.split_whitespace() {
        let named = word
            .split_once(':')
            .and_then(|(name, value)| NAMES.iter().find(|known| **known == name).map(|name| (*name, value)));
        // A rid may have a colon.
        let (name, value) = named.unwrap_or(("rid", word));
        if value.is_empty() {
            return Err(format!("{name}: needs a value, like {name}:{}", example(name)));
        }
        if name == "state" && !STATES.contains(&value) {
            return Err(format!("state {value:?} is none of {}", STATES.join(", ")));
        }
        if query.iter().any(|(known, _)| *known == name) {
            return Err(format!("{name} is given twice"));
        }
        query.push((name, value.to_owned()));
    }
    Ok(query)
}

fn example(name: &str) -> &'static str {
    match name {
        "state" => "live",
        "finish" => "stop",
        "plugin" => "redact",
        "stream" => "decode-0",
        _ => "chatcmpl-7",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_the_beginning_of_a_rid_and_named_words() {
        assert_eq!(parse("  ").unwrap(), []);
        assert_eq!(
            parse("chat-7 state:live finish:stop").unwrap(),
            [("rid", "chat-7".to_owned()), ("state", "live".to_owned()), ("finish", "stop".to_owned())]
        );
        assert_eq!(parse("urn:uuid:7").unwrap(), [("rid", "urn:uuid:7".to_owned())]);
        assert_eq!(parse("rid:state:live").unwrap(), [("rid", "state:live".to_owned())]);
    }

    #[test]
    fn a_filter_with_a_mistake_says_which() {
        assert_eq!(parse("state:done").unwrap_err(), "state \"done\" is none of live, finished, abandoned");
        assert_eq!(parse("plugin:").unwrap_err(), "plugin: needs a value, like plugin:redact");
        assert_eq!(parse("a b").unwrap_err(), "rid is given twice");
    }
}
