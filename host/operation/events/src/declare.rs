//! The macro that declares the events. One declaration gives the struct, its variant of [`Event`](crate::Event), its level,
//! its sentence, its log fields and its key for the rate limit.

use std::fmt;

/// The suffix of a line that stands for several events.
pub(crate) struct Times(pub Option<u64>);

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(times) => write!(f, " ({times} like it since the last line)"),
            None => Ok(()),
        }
    }
}

/// ```text
/// /// Docs.
/// Name, LEVEL, first N of [the fields that make two events alike] {
///     field: Type,
/// } => "sentence with {field} and {}" with an_expression_for_it;
/// ```
///
/// LEVEL is a level, `warn_if(an expression over the fields)` for WARN or else INFO, or `any(an expression over the fields)`.
macro_rules! events {
    ($(
        $(#[doc = $doc:literal])*
        $event:ident, $level:ident $(($of:expr))?, first $first:literal of [$($key:ident),*] {
            $($field:ident: $type:ty),* $(,)?
        } => $sentence:literal $(with $shown:expr)?;
    )*) => {
        $(
            $(#[doc = $doc])*
            // The fields are named so that the event's own sentence explains them.
            #[allow(missing_docs)]
            #[derive(Clone, Debug, PartialEq)]
            pub struct $event {
                $(pub $field: $type,)*
            }

            impl std::fmt::Display for $event {
                #[allow(unused_variables)]
                fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    let $event { $($field),* } = self;
                    write!(f, $sentence $(, $shown)?)
                }
            }

            impl Kind for $event {
                const NAME: &'static str = stringify!($event);

                fn of(event: &Event) -> Option<&Self> {
                    if let Event::$event(event) = event { Some(event) } else { None }
                }
            }

            impl From<$event> for Event {
                fn from(event: $event) -> Event {
                    Event::$event(event)
                }
            }

            impl $event {
                #[allow(unused_variables)]
                fn level(&self) -> tracing::Level {
                    let $event { $($field),* } = self;
                    $crate::declare::level!($level $(($of))?)
                }

                fn key(&self) -> String {
                    let mut key = String::new();
                    // Debug quotes text, so that two keys of different parts never read the same.
                    // Writing to a String cannot fail.
                    $(let _ = std::fmt::Write::write_fmt(&mut key, format_args!("{:?},", self.$key));)*
                    key
                }

                fn log(&self, times: Option<u64>) {
                    $crate::declare::log!($level, self, times, $event { $($field)* })
                }
            }
        )*

        /// Any event.
        #[allow(missing_docs)]
        #[derive(Clone, Debug, PartialEq)]
        pub enum Event {
            $($event($event),)*
        }

        impl Event {
            /// The name of each kind, in the order of [`index`](Event::index).
            pub const NAMES: &'static [&'static str] = &[$(stringify!($event)),*];

            /// The meaning of each kind and, after `Action:`, what an operator does about it, as lines, in the order of
            /// [`index`](Event::index).
            pub const DOCS: &'static [&'static [&'static str]] = &[$(&[$($doc),*]),*];

            /// The name of this event's kind.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Event::$event(_) => stringify!($event),)*
                }
            }

            /// The position of this event's kind in [`NAMES`](Event::NAMES).
            pub fn index(&self) -> usize {
                #[allow(clippy::enum_variant_names)]
                enum Index { $($event),* }
                match self {
                    $(Event::$event(_) => Index::$event as usize,)*
                }
            }

            /// The level of this event.
            pub fn level(&self) -> tracing::Level {
                match self {
                    $(Event::$event(event) => event.level(),)*
                }
            }

            /// The key of this event. Events with the same key say the same again.
            pub(crate) fn key(&self) -> String {
                match self {
                    $(Event::$event(event) => event.key(),)*
                }
            }

            /// The number of events of one key that are logged before the rest is summed up.
            pub(crate) fn first(&self) -> u64 {
                match self {
                    $(Event::$event(_) => $first,)*
                }
            }

            /// Hands the event to `tracing`. `times` is the number of events that a summary stands for.
            pub(crate) fn log(&self, times: Option<u64>) {
                match self {
                    $(Event::$event(event) => event.log(times),)*
                }
            }
        }

        impl std::fmt::Display for Event {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $(Event::$event(event) => event.fmt(f),)*
                }
            }
        }
    };
}

/// The level of one event.
macro_rules! level {
    (warn_if($is_wrong:expr)) => {
        if $is_wrong { tracing::Level::WARN } else { tracing::Level::INFO }
    };
    (any($level:expr)) => {
        $level
    };
    ($level:ident) => {
        tracing::Level::$level
    };
}

/// The log line of one event. `tracing` wants the level of a place in the code to be constant, and each place takes long to compile.
macro_rules! log {
    (warn_if, $self:ident, $($rest:tt)*) => {
        match $self.level() {
            tracing::Level::WARN => $crate::declare::log_at!(WARN, $self, $($rest)*),
            _ => $crate::declare::log_at!(INFO, $self, $($rest)*),
        }
    };
    (any, $self:ident, $($rest:tt)*) => {
        match $self.level() {
            tracing::Level::ERROR => $crate::declare::log_at!(ERROR, $self, $($rest)*),
            tracing::Level::WARN => $crate::declare::log_at!(WARN, $self, $($rest)*),
            tracing::Level::INFO => $crate::declare::log_at!(INFO, $self, $($rest)*),
            _ => $crate::declare::log_at!(DEBUG, $self, $($rest)*),
        }
    };
    ($($all:tt)*) => {
        $crate::declare::log_at!($($all)*)
    };
}

/// One log line of one event at one level.
macro_rules! log_at {
    ($level:ident, $self:ident, $times:ident, $event:ident { $($field:ident)* }) => {
        tracing::event!(
            target: TARGET,
            tracing::Level::$level,
            event = stringify!($event),
            times = $times,
            $($field = $crate::field::Field::value(&$self.$field),)*
            "{}{}", $self, Times($times),
        )
    };
}

pub(crate) use {events, level, log, log_at};
