//! Implements a version of the contract that this host does not have.

wit_bindgen::generate!({
    inline: r#"
        package afterbay:plugin@0.3.0;

        interface signals {
            pressure: func() -> u32;
        }

        interface plugin {
            describe: func() -> string;
        }

        world transform {
            import signals;
            export plugin;
        }
    "#,
});

struct OtherWorld;

impl exports::afterbay::plugin::plugin::Guest for OtherWorld {
    fn describe() -> String {
        afterbay::plugin::signals::pressure().to_string()
    }
}

export!(OtherWorld);
