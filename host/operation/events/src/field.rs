//! Conversion of event fields to values of `tracing`: numbers, booleans and text, never debug output.

use afterbay_types::{FaultKind, HoldEnd, Name};

/// A type that an event can have as a field.
pub trait Field {
    /// The type that `tracing` gets.
    type Value<'a>: tracing::Value
    where
        Self: 'a;
    /// The value that `tracing` gets.
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

macro_rules! words {
    ($($type:ty)*) => {$(
        impl Field for $type {
            type Value<'a> = &'a str;
            fn value(&self) -> &str {
                self.word()
            }
        }
    )*};
}

words! { FaultKind HoldEnd }

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
