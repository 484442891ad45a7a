//! Never returns from the call that its settings name.

guests::misbehave!(loop {
    std::hint::black_box(());
});
