//! The configuration, as written and as checked.
