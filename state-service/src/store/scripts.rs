//! The scripts, each behind what all of them share. What they do is written in them.

use redis::Script;
use std::sync::LazyLock;

macro_rules! script {
    ($name:ident, $file:literal) => {
        pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(concat!(include_str!("lua/common.lua"), include_str!($file))));
    };
}

script!(EPOCH, "lua/epoch.lua");
script!(CLAIM, "lua/claim.lua");
script!(CLAIMS, "lua/claims.lua");
script!(MERGE, "lua/merge.lua");
script!(READ, "lua/read.lua");
script!(TAIL, "lua/tail.lua");
script!(WORKERS, "lua/workers.lua");
script!(WORKER, "lua/worker.lua");
script!(DRAIN, "lua/drain.lua");
script!(ALIASES, "lua/aliases.lua");
script!(ALIAS, "lua/alias.lua");
