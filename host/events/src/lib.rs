//! Events and counters, declared once; published to tracing, metrics and tests.
