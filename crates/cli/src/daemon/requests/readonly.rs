//! The property `readonly` under what is in use: it takes effect at once, the kernel is told, and so is who set it.

use serde_json::{Value, json};

use crate::daemon::{blocks::Blocks, mounting::Mounts, open_pool::OpenPool};

/// A dataset and those below that changes can be made of.
pub(crate) fn writable_from(pool: &OpenPool, name: &str) -> Vec<String> {
    let all = pool.engine().datasets().list(Some(name)).into_iter().flatten();
    let writable = all.filter(|info| !info.settings.readonly);
    writable.map(|info| info.name).collect()
}

/// `readonly` is set otherwise for `name`; `before`, changes could be made of these. Users of those of which none can be made any
/// more are named in the answer: their programs fail from now on.
pub(crate) fn readonly_changed(
    pool: &OpenPool,
    mounts: &Mounts,
    blocks: &Blocks,
    name: &str,
    before: &[String],
) -> Value {
    mounts.readonly_changed(pool.engine());
    blocks.readonly_changed();
    let after = writable_from(pool, name);
    let stopped = before.iter().filter(|name| !after.contains(name));
    let uses: Vec<String> = stopped
        .flat_map(|name| {
            let mounted = mounts.written_at(name);
            let mounted = mounted.map(|place| format!("mounted at '{}'", place.display()));
            let uses = mounted.into_iter().chain(blocks.uses_of(name));
            uses.map(|words| format!("'{name}' is {words}"))
                .collect::<Vec<_>>()
        })
        .collect();
    match uses.is_empty() {
        true => Value::Null,
        false => json!({ "note": format!("{}: from now on changes there are refused", uses.join("; ")) }),
    }
}
