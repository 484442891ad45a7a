//! Allocates memory forever in the call that its settings name.

guests::misbehave!({
    let mut kept = Vec::new();
    loop {
        kept.push(vec![1_u8; 1 << 20]);
        std::hint::black_box(&kept);
    }
});
