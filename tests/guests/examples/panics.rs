//! Panics in the call that its settings name.

guests::misbehave!(panic!("the lake is dry"));
