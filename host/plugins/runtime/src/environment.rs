//! The environment of a component: variables that the component carries in a custom section at its end.
//!
//! `wasi:cli/environment` gives a guest these variables and no others. They are data beside the code: components that differ
//! only in this section share one compiled code. `afterbay run --dev` gives the saved sources to an interpreter this way.

use crate::limits::ENVIRONMENT_BYTES_MAX;

/// The name of the custom section. Its content is a JSON object of strings.
const SECTION: &str = "afterbay-environment";
/// The length of WebAssembly's magic number and version.
const PREAMBLE: usize = 8;

/// Names and values.
pub(crate) type Environment = Vec<(String, String)>;

/// Appends an environment to a component that has none.
pub fn with_environment(mut component: Vec<u8>, variables: &[(String, String)]) -> Vec<u8> {
    let text = |value: &String| serde_json::Value::String(value.clone());
    let variables: serde_json::Map<_, _> =
        variables.iter().map(|(name, value)| (name.clone(), text(value))).collect();
    let content = serde_json::Value::Object(variables).to_string();
    let mut section = Vec::new();
    write_length(&mut section, SECTION.len());
    section.extend_from_slice(SECTION.as_bytes());
    section.extend_from_slice(content.as_bytes());
    component.push(0);
    write_length(&mut component, section.len());
    component.extend_from_slice(&section);
    component
}

/// Splits a component into its code and its environment, which is empty if the last section is another one.
///
/// # Errors
/// A sentence: the environment is too large, or not a JSON object of strings.
pub(crate) fn split(component: &[u8]) -> Result<(&[u8], Environment), String> {
    let Some((code, content)) = find(component) else { return Ok((component, Environment::new())) };
    if content.len() > ENVIRONMENT_BYTES_MAX {
        let bytes = content.len();
        return Err(format!("its environment has {bytes} bytes, the limit is {ENVIRONMENT_BYTES_MAX}"));
    }
    let variables: std::collections::BTreeMap<String, String> = serde_json::from_slice(content)
        .map_err(|error| format!("its environment is not a JSON object of strings: {error}"))?;
    Ok((code, variables.into_iter().collect()))
}

/// The bytes before the last section, and the content of that section, if it is the environment. What is no component is the
/// compiler's to refuse.
fn find(component: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut at = PREAMBLE;
    loop {
        let begin = at;
        let id = *component.get(at)?;
        let (length, bytes) = read_length(component.get(at + 1..)?)?;
        let content_at = at + 1 + bytes;
        at = content_at.checked_add(length)?;
        if at == component.len() && id == 0 {
            let content = &component[content_at..];
            let (name, bytes) = read_length(content)?;
            let content = content.get(bytes..)?.split_at_checked(name)?;
            return (content.0 == SECTION.as_bytes()).then_some((&component[..begin], content.1));
        }
    }
}

/// Writes a LEB128 number.
fn write_length(to: &mut Vec<u8>, mut length: usize) {
    loop {
        let low = (length & 0x7f) as u8;
        length >>= 7;
        if length == 0 {
            return to.push(low);
        }
        to.push(low | 0x80);
    }
}

/// Reads a LEB128 number of at most 5 bytes. Returns the count of its bytes, too.
fn read_length(from: &[u8]) -> Option<(usize, usize)> {
    let mut length = 0;
    for (at, byte) in from.iter().take(5).enumerate() {
        length |= usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((length, at + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A component of two sections: a custom one, and one of another kind.
    const COMPONENT: &[u8] = b"\0asm\x0d\0\x01\0\0\x03\x01ab\x07\x01\0";

    fn variables(text: &str) -> Environment {
        vec![("plugin.py".to_owned(), text.to_owned()), ("sub/more.py".to_owned(), "ä\n\"".to_owned())]
    }

    #[test]
    fn an_environment_is_read_as_it_was_written_and_leaves_the_code_as_it_was() {
        for text in ["", "x", &"long ".repeat(10_000)] {
            let whole = with_environment(COMPONENT.to_vec(), &variables(text));
            assert_eq!(split(&whole), Ok((COMPONENT, variables(text))));
        }
        assert_eq!(split(COMPONENT), Ok((COMPONENT, Vec::new())));
    }

    #[test]
    fn a_cut_component_has_no_environment() {
        let whole = with_environment(COMPONENT.to_vec(), &variables("text"));
        for length in 0..whole.len() {
            assert_eq!(split(&whole[..length]), Ok((&whole[..length], Vec::new())), "{length}");
        }
    }

    #[test]
    fn an_environment_past_the_limit_is_refused_with_both() {
        let whole = with_environment(COMPONENT.to_vec(), &variables(&"x".repeat(ENVIRONMENT_BYTES_MAX)));
        let why = split(&whole).unwrap_err();
        assert!(why.ends_with("bytes, the limit is 1048576"), "{why}");
    }

    #[test]
    fn an_environment_that_is_no_object_of_strings_is_refused() {
        for content in ["", "[]", "{\"a\": 1}"] {
            let section = [&[SECTION.len() as u8], SECTION.as_bytes(), content.as_bytes()].concat();
            let whole = [COMPONENT, &[0, section.len() as u8], &section].concat();
            assert!(split(&whole).unwrap_err().contains("not a JSON object of strings"), "{content}");
        }
    }
}
