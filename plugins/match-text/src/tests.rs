//! The whole plugin, with a model of the host that gives each request's reader what it would receive.

mod behaviour;
mod corpus;
mod kinds;
mod masks;
mod measure;
mod oracle;
mod prompts;
mod random;
mod rules;
mod serialized;
mod splits;
mod suites;
mod tokens;
