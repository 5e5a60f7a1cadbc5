//! Reads one chat body many times, by the streaming reader and by a whole parse, in turn: the first call of `main` by the one, the
//! next by the other. `cargo xtask bench json` compiles it for wasm as the filter is compiled, and takes the time around each call.

mod work;

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

static CALLS: AtomicUsize = AtomicUsize::new(0);
static BODY: OnceLock<Vec<u8>> = OnceLock::new();

fn main() -> ExitCode {
    let body = BODY.get_or_init(work::body);
    let paths = work::paths();
    let streamed = CALLS.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
    let found = (0..work::READS_A_CALL).all(|_| {
        let body = black_box(body.as_slice());
        if streamed { work::streamed(&paths, body) } else { work::whole(body) }
    });
    if found { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
