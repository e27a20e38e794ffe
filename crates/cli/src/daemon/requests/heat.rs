//! Requests about heat: the regions of a file, what devices hold and how warm it is, other sizes of the fast tier.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};
use terrace_control::Failure;
use terrace_dataset::{FileKind, REGION_BYTES, TierBytes, read_region};
use terrace_store::StoreError;

use super::where_is;
use crate::daemon::{
    open_pool::OpenPool,
    support::{Loss, Parameters, Subject, failed},
};

/// Most warm regions whose place is looked up for one answer.
const REGIONS_MAX: usize = 16_384;
/// Most sizes in one question.
const SIZES_MAX: usize = 64;

pub(crate) fn minutes(pool: &OpenPool) -> u32 {
    u32::try_from(pool.engine().clock().now_nanoseconds() / 60_000_000_000).unwrap_or(u32::MAX)
}

/// A page of the regions of a file or volume, or of all files in a directory, one after the other.
pub(crate) fn regions(pool: &OpenPool, parameters: &Parameters) -> Result<Value, Failure> {
    let name = parameters.text("path")?;
    let (from, limit) = (
        parameters.number("from")?,
        parameters.number("limit")?.min(100_000),
    );
    let what = format!("list the regions of '{name}'");
    let subject = Subject::find(pool.engine(), &name)?;
    // What is still in memory has no place yet.
    pool.sync()?;
    let single = matches!(subject.kind, FileKind::File | FileKind::Volume);
    let (mut rows, mut total) = (Vec::new(), 0u64);
    let mut loss = Loss::of(pool.engine());
    subject.contents(|content| {
        let regions = content.size_bytes.div_ceil(REGION_BYTES);
        let wanted = from.max(total)..from.saturating_add(limit).min(total + regions);
        let body = terrace_dataset::body_of_object(pool.engine().store(), subject.number, content.object)
            .map_err(|error| failed(&what, &error))?
            .unwrap_or(content.object);
        for at in wanted {
            let mut row = region_row(
                pool,
                subject.number,
                body,
                at - total,
                content.size_bytes,
                &mut loss,
            )
            .map_err(|error| failed(&what, &error))?;
            if !single {
                row["path"] = json!(String::from_utf8_lossy(&content.path));
            }
            rows.push(row);
        }
        total += regions;
        Ok(true)
    })?;
    let last = from.saturating_add(limit);
    let next = (last < total).then_some(last);
    let mut answer = json!({ "path": name, "total": total, "regions": rows, "next": next });
    loss.tell(pool.engine(), &mut answer);
    Ok(answer)
}

fn region_row(
    pool: &OpenPool,
    dataset: u32,
    body: u64,
    region: u64,
    size_bytes: u64,
    loss: &mut Loss,
) -> Result<Value, StoreError> {
    let store = pool.engine().store();
    let short = u32::try_from(region).unwrap_or(u32::MAX);
    let heat = &pool.engine().environment().heat;
    let heat = heat.of(dataset, body, short, minutes(pool));
    let mut bytes = TierBytes::default();
    if let Some(found) = read_region(&**store, dataset, body, region)? {
        let most = size_bytes.saturating_sub(region.saturating_mul(REGION_BYTES));
        let engine = pool.engine();
        let place = (dataset, body, region);
        bytes.add_region_but(&**store, place, found.record, most, &mut |id, bytes| {
            loss.count(engine, id, bytes)
        })?;
    }
    Ok(json!({
        "region": region, "reads": heat.reads, "writes": heat.writes, "bytes_by_tier": where_is::by_name(pool, &bytes.by_tier),
        "stored_bytes_by_tier": where_is::by_name(pool, &bytes.stored_by_tier),
        "lost_chunks": bytes.missing, "lost_bytes": bytes.missing_bytes,
    }))
}

/// What each device holds, and how warm that is.
pub(crate) fn tier_devices(pool: &OpenPool) -> Result<Value, Failure> {
    let store = pool.engine().store();
    let heat = &pool.engine().environment().heat;
    let mut warm = Vec::new();
    heat.for_each(minutes(pool), |dataset, body, region, heat| {
        if warm.len() < REGIONS_MAX && heat.reads + heat.writes > 0.0 {
            warm.push((dataset, body, region, heat));
        }
    });
    // Regions, reads, writes; a region counts where its first chunk lies.
    let mut by_device: HashMap<u16, (u64, f64, f64)> = HashMap::new();
    for (dataset, body, region, heat) in warm {
        let found = read_region(&**store, dataset, body, u64::from(region));
        let Some(found) = found.map_err(|error| failed("look up regions", &error))? else {
            continue;
        };
        let Some(run) = found.record.runs().first() else {
            continue;
        };
        let info = store
            .chunk_info(run.chunk)
            .map_err(|error| failed("look up chunks", &error))?;
        if let Some(info) = info {
            let sums = by_device.entry(info.device).or_default();
            sums.0 += 1;
            sums.1 += f64::from(heat.reads);
            sums.2 += f64::from(heat.writes);
        }
    }
    let status = pool.engine().status();
    let rows = status.tiers.iter().flat_map(|tier| {
        tier.devices.iter().map(|device| {
            let (regions, reads, writes) = by_device.get(&device.number).copied().unwrap_or_default();
            let average = |sum: f64| if regions == 0 { 0.0 } else { sum / regions as f64 };
            let load = pool.engine().chunks().load_of(terrace_pool::SegmentRange::whole(device.number));
            json!({
                "tier": tier.name, "number": device.number, "path": device.path, "state": device.state,
                "size_bytes": device.size_bytes, "used_bytes": device.used_bytes, "live_bytes": load.live_bytes,
                "warm_regions": regions, "average_reads": average(reads), "average_writes": average(writes),
            })
        })
    });
    Ok(Value::Array(rows.collect()))
}

/// Which share of the reads so far other sizes of the fastest tier would have answered, each filled as far as its settings
/// let hot content fill it.
pub(crate) fn what_if(pool: &OpenPool, parameters: &Parameters) -> Result<Value, Failure> {
    let mut sizes: Vec<u64> = parameters.value("sizes")?;
    let what = format!("predict for pool '{}'", pool.name());
    if sizes.len() > SIZES_MAX {
        return Err(Failure::new(
            what,
            "these are too many sizes",
            format!("ask for {SIZES_MAX} at most"),
        ));
    }
    let reuse = &pool.engine().environment().reuse;
    let now = pool
        .engine()
        .pool()
        .tiers()
        .first()
        .map_or(0, |tier| tier.size_bytes);
    sizes.push(now);
    sizes.sort_unstable();
    sizes.dedup();
    let mut rows = Vec::new();
    for size in sizes {
        let hot_bytes_max = pool.engine().mover().hot_bytes_max(size);
        let Some(rate) = reuse.hit_rate(hot_bytes_max) else {
            return Err(Failure::new(
                what,
                "nothing was read since the pool was opened",
                "ask again after a while of the usual work",
            ));
        };
        rows.push(json!({
            "size_bytes": size, "hot_bytes_max": hot_bytes_max, "hit_rate": rate, "current": size == now,
        }));
    }
    Ok(json!({ "pool": pool.name(), "reads": reuse.reads(), "sizes": rows }))
}

/// What `clear_heat` would forget; an operation of its own, so that no daemon takes the question for the order.
pub(crate) fn plan_clear_heat(pool: &OpenPool) -> Value {
    let mut objects = HashSet::new();
    let mut regions = 0u64;
    let heat = &pool.engine().environment().heat;
    heat.for_each(minutes(pool), |dataset, body, _, _| {
        objects.insert((dataset, body));
        regions += 1;
    });
    json!({ "objects": objects.len(), "regions": regions, "cleared": false })
}

/// How warm each dataset is, the warmest first: its regions' reads and writes, added up.
pub(crate) fn dataset_heat(pool: &OpenPool) -> Result<Value, Failure> {
    let mut by_number: HashMap<u32, (f64, f64)> = HashMap::new();
    let heat = &pool.engine().environment().heat;
    heat.for_each(minutes(pool), |dataset, _, _, heat| {
        let sums = by_number.entry(dataset).or_default();
        sums.0 += f64::from(heat.reads);
        sums.1 += f64::from(heat.writes);
    });
    let datasets = pool.engine().datasets().list(None);
    let datasets =
        datasets.map_err(|error| failed(&format!("list the datasets of '{}'", pool.name()), &error))?;
    let mut warm: Vec<(String, f64, f64)> = datasets
        .into_iter()
        .filter_map(|info| {
            let (reads, writes) = by_number.get(&info.number)?;
            Some((info.name, *reads, *writes))
        })
        .collect();
    warm.sort_by(|one, other| {
        let sum = |row: &(String, f64, f64)| row.1 + row.2;
        sum(other).total_cmp(&sum(one)).then_with(|| one.0.cmp(&other.0))
    });
    let rows = warm
        .into_iter()
        .map(|(name, reads, writes)| json!({ "name": name, "reads": reads, "writes": writes }));
    Ok(Value::Array(rows.collect()))
}

/// Forgets all heat.
pub(crate) fn clear_heat(pool: &OpenPool) -> Result<Value, Failure> {
    let cleared = pool.engine().clear_heat();
    let objects = cleared.map_err(|error| failed("clear the heat", &error))?;
    Ok(json!({ "objects": objects, "cleared": true }))
}
