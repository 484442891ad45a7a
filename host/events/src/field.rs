//! How the fields of an event reach `tracing`: as numbers, booleans and text, never as debug output.

use std::sync::Arc;

use afterbay_types::{HoldEnd, Word};

/// The name of a stream, sink or plugin: cheap to clone into an event.
pub type Name = Arc<str>;

/// A type that an event may have as a field.
pub trait Field {
    /// As `tracing` takes it.
    type Value<'a>: tracing::Value
    where
        Self: 'a;
    /// The field's value.
    fn value(&self) -> Self::Value<'_>;
}

impl Field for Name {
    type Value<'a> = &'a str;
    fn value(&self) -> &str {
        self
    }
}

impl Field for String {
    type Value<'a> = &'a str;
    fn value(&self) -> &str {
        self
    }
}

impl Field for &'static str {
    type Value<'a> = &'a str;
    fn value(&self) -> &str {
        self
    }
}

impl Field for tracing::Level {
    type Value<'a> = &'static str;
    fn value(&self) -> &'static str {
        self.as_str()
    }
}

impl<T: Field> Field for Option<T> {
    type Value<'a>
        = Option<T::Value<'a>>
    where
        T: 'a;
    fn value(&self) -> Option<T::Value<'_>> {
        self.as_ref().map(T::value)
    }
}

impl Field for HoldEnd {
    type Value<'a> = &'a str;
    fn value(&self) -> &str {
        self.word()
    }
}

macro_rules! copied {
    ($($type:ty)*) => {$(
        impl Field for $type {
            type Value<'a> = $type;
            fn value(&self) -> $type {
                *self
            }
        }
    )*};
}

copied! { u32 u64 i64 usize bool }
